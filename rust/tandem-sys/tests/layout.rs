// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every size, offset, constant and initialiser is what C says: `layout.c` prints them, of the
//! headers of the library that is linked. Those of Vulkan, where its headers are there.
use std::{env, fs, path::Path, process::Command};

#[rustfmt::skip]
#[path = "layout/lines.rs"]
mod lines;

#[test]
fn declarations_are_those_of_c() {
    let work = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(work).unwrap();
    let program = work.join("layout");
    let mut cc = Command::new(env::var("CC").unwrap_or("cc".into()));
    cc.args(["-std=c11", "-Wall", "-Werror", "-I", env!("TANDEM_SYS_INCLUDE"), "-o"]).arg(&program);
    if let Ok(vulkan) = env::var("VULKAN_HEADERS") {
        cc.args(["-I", &vulkan]);
    }
    cc.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/layout.c"));
    assert!(cc.status().expect("no C compiler").success());
    let output = Command::new(&program).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let of_c: Vec<&str> = said.lines().collect();
    let with_vulkan = of_c.iter().any(|line| line.starts_with("sizeof tandem_vk_device_desc "));
    assert!(with_vulkan || env::var("VULKAN_HEADERS").is_err());
    let of_rust: Vec<String> =
        lines::lines().into_iter().filter(|l| with_vulkan || !l.0).map(|l| l.1).collect();
    assert!(of_rust.len() > 300, "{} lines", of_rust.len());
    assert_eq!(of_c.len(), of_rust.len());
    for (c, rust) in of_c.iter().zip(&of_rust) {
        assert_eq!(c, rust);
    }
}
