//! Builds the C side of JPEG decoding against the libjpeg-turbo that `turbojpeg-sys` has just built.

use std::env;

fn main() {
    let shim = "src/sys/jpeg_shim.c";
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={shim}");
    let include = env::var("DEP_TURBOJPEG_INCLUDE").expect("turbojpeg-sys tells where its headers are");
    cc::Build::new()
        .file(shim)
        .includes(include.split(','))
        .warnings(true)
        .extra_warnings(true)
        .compile("feedline_jpeg");
}
