//! Writes the seeds of the fuzz targets: `seeds FOLDER` creates a directory for each target that has seeds.

use std::error::Error;
use std::path::Path;

use feedline_fuzz_targets::{Seed, TARGETS, seeds};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("missing argument: seeds FOLDER")?;
    for target in TARGETS {
        let folder = Path::new(&folder).join(target.name);
        for Seed { name, bytes } in seeds(target.name)? {
            std::fs::create_dir_all(&folder)?;
            std::fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}
