//! `make chaos MINUTES=10 SEED=3`: runs a job while roles are killed and suspended and links are cut, and reports the outcome.
//! `BUFFER=1KiB` sets the receive buffer of the consumers.

use std::process::ExitCode;
use std::time::Duration;

use feedline_tests::chaos;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let minutes = arguments.next().and_then(|text| text.parse::<f64>().ok());
    let seed = arguments.next().and_then(|text| text.parse::<u64>().ok());
    let (Some(minutes), Some(seed)) = (minutes, seed) else {
        eprintln!("write the minutes and a seed, such as `make chaos MINUTES=10 SEED=3`");
        return ExitCode::from(2);
    };
    let buffer = arguments.next();
    let Some(outcome) = chaos::run(Duration::from_secs_f64(60.0 * minutes), seed, buffer.as_deref()) else {
        return ExitCode::SUCCESS;
    };
    print!("{outcome}");
    if outcome.defects().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
