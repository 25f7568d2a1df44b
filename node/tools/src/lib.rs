//! The commands for developers, which `feedline --help` does not list: `feedline bench` measures, `feedline make-data`
//! generates datasets. The process that runs a command passes itself in as a [`ToolHost`].

mod bench;
mod host;
mod make_data;

pub use self::bench::{BenchArgs, run as run_bench};
pub use self::host::{EmbeddedCluster, ToolHost};
pub use self::make_data::{MakeDataArgs, run as run_make_data};
