//! The feedline binary.

mod make_data;

use clap::Parser;

#[derive(Parser)]
#[command(name = "feedline", version, about = "A distributed input-pipeline service")]
enum Command {
    /// Makes a data set to try and to measure with.
    MakeData(make_data::MakeDataArgs),
}

fn main() -> std::process::ExitCode {
    let Command::MakeData(args) = Command::parse();
    match make_data::run(args) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
