//! Generates the wire types from `proto/`, without an installed protoc.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = [
        "feedline/v1/control.proto",
        "feedline/v1/data.proto",
        "feedline/v1/members.proto",
        "keda/externalscaler.proto",
    ];
    let files = protox::compile(files, ["proto"])?;
    tonic_prost_build::configure().bytes(".feedline.v1").btree_map(".feedline.v1").compile_fds(files)?;
    Ok(())
}
