//! Builds the C side of JPEG decoding and transcoding against the libjpeg-turbo that `turbojpeg-sys` has just built.

use std::env;

fn main() {
    let sources = ["src/sys/jpeg_shim.c", "src/sys/jpeg_memory.c", "src/sys/transcode_shim.c"];
    println!("cargo:rerun-if-changed=build.rs");
    for file in sources.iter().chain(&["src/sys/jpeg_memory.h", "src/sys/jpeg_shim.h"]) {
        println!("cargo:rerun-if-changed={file}");
    }
    let include = env::var("DEP_TURBOJPEG_INCLUDE").expect("turbojpeg-sys tells where its headers are");
    cc::Build::new()
        .files(sources)
        .includes(include.split(','))
        .warnings(true)
        .extra_warnings(true)
        .compile("feedline_jpeg");
}
