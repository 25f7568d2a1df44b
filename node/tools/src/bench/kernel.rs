//! `feedline bench kernel`: measures random crops of JPEGs in a plain loop, which shows the limit of the cores, and in
//! an equivalent job. Repetitions of all subjects are interleaved, so that noise on the machine affects them equally.

mod job;
mod report;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::{Args, ValueEnum};
use feedline_command::Failure;
use feedline_command::output::ReportFormat;
use feedline_worker::kernel::{KernelDecode, KernelResult, crop_resize_loop, with_index};

use self::job::SIZE;
use self::report::{KernelReport, KernelSubjectReport};
use crate::host::ToolHost;
use crate::make_data::photo;

/// Number of images that are generated if the user gives no directory.
const GENERATED_IMAGES: u64 = 64;

/// Arguments of `feedline bench kernel`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline bench kernel\n  \
    feedline bench kernel photographs/ --turns 5 --only one,job --report json")]
pub(super) struct KernelArgs {
    /// Directory with JPEGs [default: 64 generated images].
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Repetitions of each subject; the report shows the median.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Passes over the images in one repetition; each pass draws new crops.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    passes: u32,
    /// Cores for `together` and `job` [default: all cores that this process may use].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    cores: Option<u32>,
    /// Subjects to measure [default: all].
    #[arg(long, value_enum, value_name = "SUBJECT", value_delimiter = ',')]
    only: Vec<KernelSubject>,
    /// Format of the report; json prints one object on one line.
    #[arg(long, alias = "format", value_enum, value_name = "FORMAT", default_value_t)]
    report: ReportFormat,
}

/// A method of cropping images that is measured.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum KernelSubject {
    /// The loop on one thread.
    One,
    /// The loop on all cores at the same time.
    Together,
    /// The loop on one thread, on JPEGs with an index.
    Indexed,
    /// The loop on one thread, decoding whole images.
    Whole,
    /// A job in this process that reads, crops, resizes and batches the same images.
    Job,
}

impl KernelSubject {
    fn name(self) -> &'static str {
        match self {
            Self::One => "loop, one thread",
            Self::Together => "loop, all cores",
            Self::Indexed => "loop, one thread, indexed JPEGs",
            Self::Whole => "loop, one thread, whole images",
            Self::Job => "job in this process",
        }
    }

    /// Returns the number of cores that the subject runs on.
    fn cores(self, cores: u32) -> u32 {
        match self {
            Self::One | Self::Indexed | Self::Whole => 1,
            Self::Together | Self::Job => cores,
        }
    }
}

/// The original JPEGs, and the same JPEGs with an index.
struct BenchImages {
    plain: Vec<Bytes>,
    indexed: Vec<Bytes>,
}

/// Runs the benchmark and prints its report.
pub(super) async fn run(args: KernelArgs, host: &dyn ToolHost) -> Result<(), Failure> {
    let scratch = tempfile::tempdir().map_err(Failure::failed)?;
    let folder = match &args.folder {
        Some(folder) => folder.clone(),
        None => generate(scratch.path())?,
    };
    let plain = read_jpegs(&folder)?;
    let images = BenchImages { indexed: with_index(&plain), plain };
    let cores = args.cores.unwrap_or_else(|| host.cores());
    let all = KernelSubject::value_variants();
    let subjects: Vec<KernelSubject> =
        all.iter().filter(|one| args.only.is_empty() || args.only.contains(one)).copied().collect();
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); subjects.len()];
    for _ in 0..args.turns {
        for (subject, rates) in subjects.iter().zip(&mut rates) {
            rates.push(match subject {
                KernelSubject::Job => {
                    let count = images.plain.len() as u64;
                    job::measure(host, &folder, scratch.path(), count, (cores, args.passes)).await?
                }
                loops => measure_loop(*loops, &images, cores, args.passes),
            });
        }
    }
    let measured = subjects
        .iter()
        .zip(&rates)
        .map(|(subject, rates)| KernelSubjectReport::new(subject.name(), subject.cores(cores), rates));
    let report = KernelReport::new(measured.collect(), args.turns, images.plain.len(), cores);
    args.report.print(&report, KernelReport::to_text)
}

fn generate(scratch: &Path) -> Result<PathBuf, Failure> {
    let folder = scratch.join("images");
    std::fs::create_dir(&folder).map_err(Failure::failed)?;
    for row in 0..GENERATED_IMAGES {
        let jpeg = photo::jpeg(0, row, None).map_err(Failure::failed)?;
        std::fs::write(folder.join(format!("{row:05}.jpg")), jpeg).map_err(Failure::failed)?;
    }
    Ok(folder)
}

/// Reads the JPEGs of a directory, sorted by name.
fn read_jpegs(folder: &Path) -> Result<Vec<Bytes>, Failure> {
    let failed = |error| Failure::failed(format!("cannot read the directory {}: {error}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(failed)?;
    paths.sort();
    let mut jpegs = Vec::new();
    for path in paths.iter().filter(|path| path.is_file()) {
        let bytes = std::fs::read(path)
            .map_err(|error| Failure::failed(format!("cannot read the image {}: {error}", path.display())))?;
        if bytes.starts_with(&[0xFF, 0xD8]) {
            jpegs.push(Bytes::from(bytes));
        }
    }
    if jpegs.is_empty() {
        return Err(Failure::failed(format!(
            "the directory {} contains no JPEG: pass a directory with JPEGs, or omit FOLDER to use generated images",
            folder.display()
        )));
    }
    Ok(jpegs)
}

/// Returns the images per second of a loop, summed over its threads.
fn measure_loop(subject: KernelSubject, images: &BenchImages, cores: u32, passes: u32) -> f64 {
    let jpegs = if subject == KernelSubject::Indexed { &images.indexed } else { &images.plain };
    let decode = if subject == KernelSubject::Whole { KernelDecode::Whole } else { KernelDecode::Crop };
    let rate = |first: u64| {
        let seeds = first..first + u64::from(passes);
        let turns: Vec<KernelResult> =
            seeds.map(|seed| crop_resize_loop(jpegs, decode, seed, SIZE)).collect();
        let images: u64 = turns.iter().map(|turn| turn.images).sum();
        images as f64 / turns.iter().map(|turn| turn.seconds).sum::<f64>()
    };
    std::thread::scope(|scope| {
        let rate = &rate;
        let threads: Vec<_> = (0..subject.cores(cores))
            .map(|thread| scope.spawn(move || rate(u64::from(thread * passes))))
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("the kernel does not panic")).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_a_jpeg_is_rejected() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("notes.txt"), "none").unwrap();
        let failure = read_jpegs(scratch.path()).unwrap_err().to_string();
        assert!(failure.contains("contains no JPEG: pass a directory with JPEGs"), "{failure}");
        let failure = read_jpegs(&scratch.path().join("nowhere")).unwrap_err().to_string();
        assert!(failure.starts_with("cannot read the directory"), "{failure}");
    }
}
