// SPDX-License-Identifier: MIT OR Apache-2.0
// Finds an installed libtandem: under the prefix in TANDEM_DIR, else where pkg-config knows it.
use std::{env, path::Path, process::Command};

// pkg-config's words. A folder's spaces and letters beyond ASCII stand behind backslashes there.
fn words(said: &[u8]) -> Vec<String> {
    let (mut words, mut word) = (vec![], vec![]);
    let mut bytes = said.iter().copied();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => word.extend(bytes.next()),
            b' ' | b'\t' | b'\r' | b'\n' => words.push(std::mem::take(&mut word)),
            _ => word.push(byte),
        }
    }
    words.push(word);
    let texts = words.iter().map(|w| String::from_utf8_lossy(w).into_owned());
    texts.filter(|w| !w.is_empty()).collect()
}

fn main() {
    for name in ["TANDEM_DIR", "PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let program = env::var("PKG_CONFIG").unwrap_or("pkg-config".into());
    let mut command = Command::new(&program);
    if let Ok(prefix) = env::var("TANDEM_DIR") {
        let mut folders = vec![Path::new(&prefix).join("lib")];
        if let Ok(entries) = folders[0].read_dir() {
            folders.extend(entries.flatten().map(|e| e.path())); // lib/x86_64-linux-gnu
        }
        folders.push(Path::new(&prefix).join("lib64"));
        let paths = folders.iter().map(|f| f.join("pkgconfig"));
        command.env("PKG_CONFIG_PATH", env::join_paths(paths).unwrap());
    }
    let output = command
        .args(["--cflags", "--libs", "tandem"])
        .env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1")
        .output()
        .unwrap_or_else(|e| panic!("{program} cannot be run: {e}"));
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        panic!("libtandem was not found; TANDEM_DIR may name the prefix of its installation\n{why}");
    }
    for word in words(&output.stdout) {
        if let Some(folder) = word.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={folder}");
            // For the tests and examples of this crate, where the library is a shared one.
            println!("cargo:rustc-link-arg=-Wl,-rpath,{folder}");
        } else if let Some(library) = word.strip_prefix("-l") {
            println!("cargo:rustc-link-lib={library}");
        } else if let Some(folder) = word.strip_prefix("-I") {
            println!("cargo:include={folder}"); // DEP_TANDEM_INCLUDE of crates that link this one
            println!("cargo:rustc-env=TANDEM_SYS_INCLUDE={folder}");
        }
    }
}
