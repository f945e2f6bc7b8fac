# SPDX-License-Identifier: MIT OR Apache-2.0
"""Takes the code blocks out of a page, puts around each what its marker says, builds it and runs it.

A marker is a comment on the line before the block:

    <!-- test: NAME -->

NAME is one of HARNESSES below. A block without a marker fails, except for README's blocks of commands: the machine's set-up is no
part of a test. Called by CTest (docs.cmake).
"""
import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def blocks_of(page):
    """(marker or None, language, text, number of the line) of each fenced block."""
    with open(page, encoding="utf-8") as file:
        lines = file.read().split("\n")
    found, number = [], 0
    while number < len(lines):
        fence = re.match(r"```(\w*)\s*$", lines[number])
        if fence:
            marker = re.match(r"<!-- test: ([a-z-]+) -->$", lines[number - 1]) if number else None
            end = lines.index("```", number + 1)
            found.append((marker and marker.group(1), fence.group(1), "\n".join(lines[number + 1:end]) + "\n", number + 1))
            number = end
        number += 1
    return found


class Page:
    def __init__(self, args):
        self.args = args
        self.count = 0
        self.prefix = os.path.join(args.work, "opt", "tandem")
        shutil.rmtree(args.work, ignore_errors=True)
        os.makedirs(args.work)

    def run(self, command, **more):
        print("+ " + shlex.join(command), flush=True)
        done = subprocess.run(command, check=False, **more)
        if done.returncode:
            sys.exit(f"ended with {done.returncode}: {shlex.join(command)}")

    def folder(self):
        self.count += 1
        path = os.path.join(self.args.work, str(self.count))
        os.makedirs(path)
        return path

    def write(self, path, text):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def cc(self, source, *more):
        """Compiles a program against the library of this build."""
        program = os.path.splitext(source)[0]
        self.run([self.args.cc, "-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", source, "-o", program,
                  "-I" + os.path.join(self.args.source, "include"), *more, self.args.library, *shlex.split(self.args.link),
                  "-lstdc++", "-lm", "-pthread", "-ldl"])
        return program

    # ---- harnesses ----

    def program(self, text):
        """A whole program in C."""
        self.run([self.cc(self.write(os.path.join(self.folder(), "program.c"), text))])

    def wrapped(self, text, harness, *more):
        """A fragment that HARNESS.c includes as block.inc."""
        folder = self.folder()
        self.write(os.path.join(folder, "block.inc"), text)
        source = os.path.join(folder, harness)
        shutil.copy(os.path.join(HERE, harness), source)
        return self.cc(source, "-I" + folder, *more)

    def cuda(self, text):
        self.run([self.wrapped(text, "cuda.c")])

    def vulkan(self, text):
        """Compiled where there are Vulkan headers, run where there is a driver (on-driver exits with 77 without)."""
        if not self.args.volk:
            print("this build has no Vulkan: the block is not compiled")
            return
        program = self.wrapped(text, "vulkan.c", "-isystem", self.args.volk, "-isystem", self.args.vulkan_headers)
        command = [*shlex.split(self.args.driver), program]
        print("+ " + shlex.join(command), flush=True)
        code = subprocess.run(command, check=False).returncode
        if code not in (0, 77):
            sys.exit(f"ended with {code}: {shlex.join(command)}")

    def project(self, text, before, build, *options):
        folder = self.folder()
        self.write(os.path.join(folder, "CMakeLists.txt"), "cmake_minimum_required(VERSION 3.22)\nproject(app LANGUAGES C CXX)\n" + before +
                   "add_executable(app app.c)\n" + text)
        shutil.copy(os.path.join(self.args.source, "tests", "install", "consumers", "app.c"), folder)
        tree = os.path.join(folder, "build")
        self.run([self.args.cmake, "-G", self.args.generator, "-S", folder, "-B", tree, f"-DCMAKE_C_COMPILER={self.args.cc}",
                  f"-DCMAKE_CXX_COMPILER={self.args.cxx}", *options], stdout=subprocess.DEVNULL)
        if build:
            self.run([self.args.cmake, "--build", tree], stdout=subprocess.DEVNULL)
            self.run([os.path.join(tree, "app")])

    def subdirectory(self, text):
        """Configured, not built: the tests consumers.subdirectory and consumers.fetch build the library along."""
        folder = f'file(MAKE_DIRECTORY third_party)\nfile(CREATE_LINK "{self.args.source}" "${{CMAKE_SOURCE_DIR}}/third_party/tandem" SYMBOLIC)\n'
        self.project(text, folder, False, "-DTANDEM_VULKAN=OFF", "-DTANDEM_CUDA=OFF")

    def fetch(self, text):
        """The repository is this tree; otherwise as subdirectory."""
        text = re.sub(r"GIT_REPOSITORY \S+ +GIT_TAG [^)\s]+", f'SOURCE_DIR "{self.args.source}"', text)
        self.project(text, "", False, "-DTANDEM_VULKAN=OFF", "-DTANDEM_CUDA=OFF")

    def install(self, text):
        """The last command installs the tree of this build; the options of the first are options of this build."""
        for option in re.findall(r"-D(\w+)=", text):
            with open(os.path.join(self.args.build, "CMakeCache.txt"), encoding="utf-8") as cache:
                if not re.search(rf"^{option}:", cache.read(), re.M):
                    sys.exit(f"this build has no option {option}")
        command = re.search(r"cmake (--install build --prefix /opt/tandem)\s*$", text, re.M)
        if not command:
            sys.exit("the block does not end with an installation into /opt/tandem")
        words = command.group(1).replace("build", self.args.build).replace("/opt/tandem", self.prefix).split(" ")
        self.run([self.args.cmake, *words], stdout=subprocess.DEVNULL)

    def package(self, text):
        """A project of its own beside what the block `install` left."""
        self.project(text, "", True, f"-DCMAKE_PREFIX_PATH={self.prefix}")

    def compile(self, text):
        """Lines of commands, as a shell takes them, of which each makes a program named app."""
        folder = self.folder()
        shutil.copy(os.path.join(self.args.source, "tests", "install", "consumers", "app.c"), folder)
        libraries = [path for path in (os.path.join(self.prefix, name) for name in ("lib", "lib64")) if os.path.isdir(path)]
        static = os.path.join(libraries[0], "libtandem.a")
        environment = {**os.environ, "PKG_CONFIG_PATH": os.path.join(libraries[0], "pkgconfig"), "LD_LIBRARY_PATH": folder}
        for line in text.strip().split("\n"):
            line = line.split(" # ")[0].strip()
            if "-ltandem" in line:  # the shared library is linked from the static one's objects
                self.run([self.args.cxx, "-shared", "-o", os.path.join(folder, "libtandem.so"), "-Wl,--whole-archive", static,
                          "-Wl,--no-whole-archive", *shlex.split(self.args.link), "-pthread", "-ldl"])
                line = line.replace("/opt/tandem/lib", folder)
            elif "pkg-config" in line and not shutil.which("pkg-config"):
                print("this machine has no pkg-config: " + line)
                continue
            line = line.replace("/opt/tandem/lib/libtandem.a", "LIBTANDEM").replace("/opt/tandem", self.prefix)
            line = line.replace("LIBTANDEM", static)
            line = re.sub(r"^cc ", self.args.cc + " ", line)
            if "libtandem.a" in line and self.args.link:
                line += " " + self.args.link
            self.run(["sh", "-ec", line + " && ./app"], cwd=folder, env=environment)


HARNESSES = ("program", "cuda", "vulkan", "subdirectory", "fetch", "install", "package", "compile")


def main():
    parser = argparse.ArgumentParser()
    for name in ("page", "source", "build", "work", "library", "cc", "cxx", "cmake", "generator"):
        parser.add_argument("--" + name, required=True)
    for name in ("link", "volk", "vulkan-headers", "driver"):
        parser.add_argument("--" + name, default="")
    args = parser.parse_args()
    page = Page(args)
    tested = 0
    for marker, language, text, number in blocks_of(os.path.join(args.source, args.page)):
        where = f"{args.page}:{number}"
        if marker is None and args.page == "README.md" and language not in ("c", "cmake"):
            continue
        if marker is None:
            sys.exit(f"{where}: a block without a marker (tests/docs/blocks.py)")
        if marker not in HARNESSES:
            sys.exit(f"{where}: no harness is named '{marker}'")
        print(f"{where}: {marker}", flush=True)
        getattr(page, marker)(text)
        tested += 1
    if not tested:
        sys.exit(f"{args.page} has no block to test")


main()
