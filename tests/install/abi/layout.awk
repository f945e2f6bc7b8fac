# SPDX-License-Identifier: MIT OR Apache-2.0
# Reads a public header and writes a C program that prints its values (enumerators, numbers) and its structs: size,
# and each member's offset and size.
#   awk -v header=tandem/tandem.h -f layout.awk include/tandem/tandem.h
function last_name(text) {
  sub(/\[.*/, "", text)
  sub(/[ \t]+$/, "", text)
  sub(/.*[^A-Za-z0-9_]/, "", text)
  return text
}
function value(name) { print "  printf(\"value %s %lld\\n\", \"" name "\", (long long)" name ");" }
function member(of, name) {
  print "  printf(\"  %s %zu %zu\\n\", \"" name "\", offsetof(" of ", " name "), sizeof(((" of "*)0)->" name "));"
}
function structure(of, body, members, count, declared, i, j, names) {
  print "  printf(\"struct %s %zu\\n\", \"" of "\", sizeof(" of "));"
  count = split(body, members, ";")
  for (i = 1; i <= count; i++) {
    if (members[i] ~ /^[ \t]*$/) continue
    if (match(members[i], /\(\*[A-Za-z0-9_]+\)/)) {
      member(of, substr(members[i], RSTART + 2, RLENGTH - 3))
      continue
    }
    declared = split(members[i], names, ",")
    for (j = 1; j <= declared; j++) member(of, last_name(names[j]))
  }
}
function enumeration(body, count, i, names) {
  count = split(body, names, ",")
  for (i = 1; i <= count; i++) {
    sub(/=.*/, "", names[i])
    if (names[i] !~ /^[ \t]*$/) value(last_name(names[i]))
  }
}
/^#define TANDEM_[A-Z0-9_]+ +(\(-|[0-9])/ && !/_VERSION_/ { defines[++defined] = $2 }
{ text = text " " $0 }
END {
  while (match(text, /\/\*/)) { # comments
    rest = substr(text, RSTART + 2)
    text = substr(text, 1, RSTART - 1) " " substr(rest, index(rest, "*/") + 2)
  }
  print "#include <stdio.h>\n#include <stddef.h>\n#include <" header ">\nint main(void) {"
  for (i = 1; i <= defined; i++) value(defines[i])
  while (match(text, /typedef (struct|enum) [a-z_]+ \{[^}]*\}/)) {
    found = substr(text, RSTART, RLENGTH)
    text = substr(text, RSTART + RLENGTH)
    open = index(found, "{")
    split(found, words, " ")
    body = substr(found, open + 1, length(found) - open - 1)
    if (words[2] == "enum") enumeration(body)
    else structure(words[3], body)
  }
  print "  return 0;\n}"
}
