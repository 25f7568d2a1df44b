//! Compiles the C side of the partial decoder against the headers of the libjpeg-turbo that turbojpeg-sys built.

#[expect(clippy::disallowed_methods, reason = "cargo speaks to build scripts through the environment")]
fn main() {
    println!("cargo::rerun-if-changed=c/partial.c");
    println!("cargo::rerun-if-changed=build.rs");
    let headers = std::env::var("DEP_TURBOJPEG_INCLUDE").unwrap_or_default();
    let mut build = cc::Build::new();
    build.file("c/partial.c").warnings(true).extra_warnings(true).opt_level(2);
    for path in headers.split(',').filter(|path| !path.is_empty()) {
        build.include(path);
    }
    build.compile("feedline_jpeg_partial");
}
