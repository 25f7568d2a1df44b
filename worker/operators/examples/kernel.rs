//! `kernel FOLDER [PASSES]`: images per second of wall time of the bare kernel on one thread: decode a random crop,
//! resize it, nothing else. The measure that the engine is held against.

use std::error::Error;

use bytes::Bytes;
use feedline_operators::kernel::crop_resize_loop;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, passes @ ..] = arguments.as_slice() else {
        return Err("usage: kernel FOLDER [PASSES]".into());
    };
    let passes: u64 = passes.first().map_or(Ok(5), |text| text.parse())?;
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    paths.sort();
    let files =
        paths.iter().map(|path| std::fs::read(path).map(Bytes::from)).collect::<Result<Vec<_>, _>>()?;
    crop_resize_loop(&files, 0, [224, 224]);
    let (mut images, mut seconds) = (0, 0.0);
    for seed in 0..passes {
        let result = crop_resize_loop(&files, seed, [224, 224]);
        images += result.images;
        seconds += result.seconds;
    }
    println!("{:.1}", images as f64 / seconds);
    Ok(())
}
