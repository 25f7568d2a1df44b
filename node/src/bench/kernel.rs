//! `feedline bench kernel`: images through a random crop and a resize: the bare loop, which is what the cores can do, next
//! to a job that does the same. Turns are interleaved, so that a noisy minute hits all subjects alike.

mod job;
mod report;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::{Args, ValueEnum};
use feedline_data::pipeline::Size;
use feedline_worker::kernel::{KernelDecode, KernelResult, crop_resize_loop, with_index};

use self::report::{Report, SubjectReport};
use crate::cli::ReportFormat;
use crate::failure::Failure;
use crate::make_data::photo;
use crate::{environment, output};

/// Height and width of the results.
const SIZE: Size = [224, 224];
/// Images that are made where the user has none.
const GENERATED: u64 = 64;

/// What `feedline bench kernel` is asked for.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Examples:\n  \
    feedline bench kernel\n  \
    feedline bench kernel photographs/ --turns 5 --only one,job --report json")]
pub(crate) struct KernelArgs {
    /// Folder of JPEGs; without it, some are generated.
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Turns of each subject; the median counts.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    turns: u32,
    /// Passes over the images in a turn, each with other crops.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    passes: u32,
    /// Cores for `together` and `job` [default: those this process may use].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    cores: Option<u32>,
    /// Subjects to measure [default: all].
    #[arg(long, value_enum, value_name = "SUBJECT", value_delimiter = ',')]
    only: Vec<Subject>,
    /// How the report looks; json ends standard output with one object on one line.
    #[arg(long, alias = "format", value_enum, value_name = "FORMAT", default_value_t)]
    report: ReportFormat,
}

/// What is measured.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    /// The loop on one thread.
    One,
    /// The loop on each core at the same time.
    Together,
    /// The loop on one thread, of JPEGs with an index.
    Indexed,
    /// The loop on one thread, decoding whole images.
    Whole,
    /// A job in this process: the same images from their files, cropped, resized and batched.
    Job,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Self::One => "loop, one thread",
            Self::Together => "loop, all cores at once",
            Self::Indexed => "loop, one thread, indexed JPEGs",
            Self::Whole => "loop, one thread, whole images",
            Self::Job => "job in this process",
        }
    }

    /// Cores that it runs on.
    fn cores(self, cores: u32) -> u32 {
        match self {
            Self::One | Self::Indexed | Self::Whole => 1,
            Self::Together | Self::Job => cores,
        }
    }
}

/// The images in their two forms.
struct Images {
    plain: Vec<Bytes>,
    indexed: Vec<Bytes>,
}

/// Measures and prints.
pub(crate) async fn run(args: KernelArgs) -> Result<(), Failure> {
    let scratch = tempfile::tempdir().map_err(Failure::failed)?;
    let folder = match &args.folder {
        Some(folder) => folder.clone(),
        None => generate(scratch.path())?,
    };
    let plain = read_jpegs(&folder)?;
    let images = Images { indexed: with_index(&plain), plain };
    let cores = args.cores.unwrap_or_else(environment::cores);
    let all = Subject::value_variants();
    let subjects: Vec<Subject> =
        all.iter().filter(|one| args.only.is_empty() || args.only.contains(one)).copied().collect();
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); subjects.len()];
    for _ in 0..args.turns {
        for (subject, rates) in subjects.iter().zip(&mut rates) {
            rates.push(match subject {
                Subject::Job => {
                    job::turn(&folder, scratch.path(), images.plain.len() as u64, (cores, args.passes))
                        .await?
                }
                loops => turn(*loops, &images, cores, args.passes),
            });
        }
    }
    let measured = subjects
        .iter()
        .zip(&rates)
        .map(|(subject, rates)| SubjectReport::new(subject.name(), subject.cores(cores), rates));
    let report = Report::new(measured.collect(), args.turns, images.plain.len(), cores);
    output::print(&match args.report {
        ReportFormat::Text => report.to_text(),
        ReportFormat::Json => report.to_json().map_err(Failure::failed)?,
    })?;
    Ok(())
}

fn generate(scratch: &Path) -> Result<PathBuf, Failure> {
    let folder = scratch.join("images");
    std::fs::create_dir(&folder).map_err(Failure::failed)?;
    for row in 0..GENERATED {
        let jpeg = photo::jpeg(0, row, None).map_err(Failure::failed)?;
        std::fs::write(folder.join(format!("{row:05}.jpg")), jpeg).map_err(Failure::failed)?;
    }
    Ok(folder)
}

/// The JPEGs of a folder, in the order of their names.
fn read_jpegs(folder: &Path) -> Result<Vec<Bytes>, Failure> {
    let cannot = |error| Failure::failed(format!("{} cannot be read: {error}", folder.display()));
    let entries = std::fs::read_dir(folder).map_err(cannot)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(cannot)?;
    paths.sort();
    let mut jpegs = Vec::new();
    for path in paths.iter().filter(|path| path.is_file()) {
        let bytes =
            std::fs::read(path).map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
        if bytes.starts_with(&[0xFF, 0xD8]) {
            jpegs.push(Bytes::from(bytes));
        }
    }
    if jpegs.is_empty() {
        let sentence = format!("{} holds no JPEG: name a folder of photographs, or none", folder.display());
        return Err(Failure::failed(sentence));
    }
    Ok(jpegs)
}

/// Images per second of a loop, on all its threads together.
fn turn(subject: Subject, images: &Images, cores: u32, passes: u32) -> f64 {
    let jpegs = if subject == Subject::Indexed { &images.indexed } else { &images.plain };
    let decode = if subject == Subject::Whole { KernelDecode::Whole } else { KernelDecode::Crop };
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
    fn a_folder_without_a_jpeg_is_told_with_the_fix() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("notes.txt"), "none").unwrap();
        let failure = read_jpegs(scratch.path()).unwrap_err().to_string();
        assert!(failure.ends_with("holds no JPEG: name a folder of photographs, or none"), "{failure}");
        let failure = read_jpegs(&scratch.path().join("nowhere")).unwrap_err().to_string();
        assert!(failure.contains("nowhere cannot be read"), "{failure}");
    }
}
