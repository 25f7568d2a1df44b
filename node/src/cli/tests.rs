//! Tests of the help of every command, and of the consistency of the flags.

use clap::CommandFactory;
use expect_test::expect_file;

use super::*;

fn help(path: &[&str]) -> String {
    let mut command = Cli::command();
    command.build();
    let mut found = &mut command;
    for name in path {
        found = found.find_subcommand_mut(name).expect("the command exists");
    }
    found.render_long_help().to_string()
}

#[test]
fn help_matches_the_golden_files() {
    expect_file!["../../tests/help/feedline.txt"].assert_eq(&help(&[]));
    expect_file!["../../tests/help/run.txt"].assert_eq(&help(&["run"]));
    expect_file!["../../tests/help/coordinator.txt"].assert_eq(&help(&["coordinator"]));
    expect_file!["../../tests/help/worker.txt"].assert_eq(&help(&["worker"]));
    expect_file!["../../tests/help/up.txt"].assert_eq(&help(&["up"]));
    expect_file!["../../tests/help/index.txt"].assert_eq(&help(&["index"]));
    expect_file!["../../tests/help/graph.txt"].assert_eq(&help(&["graph"]));
    expect_file!["../../tests/help/graph-build.txt"].assert_eq(&help(&["graph", "build"]));
    expect_file!["../../tests/help/graph-info.txt"].assert_eq(&help(&["graph", "info"]));
    expect_file!["../../tests/help/graph-check.txt"].assert_eq(&help(&["graph", "check"]));
    expect_file!["../../tests/help/explain.txt"].assert_eq(&help(&["explain"]));
    expect_file!["../../tests/help/lint.txt"].assert_eq(&help(&["lint"]));
    expect_file!["../../tests/help/plan.txt"].assert_eq(&help(&["plan"]));
    expect_file!["../../tests/help/preview.txt"].assert_eq(&help(&["preview"]));
    expect_file!["../../tests/help/bench-kernel.txt"].assert_eq(&help(&["bench", "kernel"]));
    expect_file!["../../tests/help/job.txt"].assert_eq(&help(&["job"]));
    expect_file!["../../tests/help/keys-apply.txt"].assert_eq(&help(&["keys", "apply"]));
    expect_file!["../../tests/help/members.txt"].assert_eq(&help(&["members"]));
    expect_file!["../../tests/help/top.txt"].assert_eq(&help(&["top"]));
    expect_file!["../../tests/help/simulate.txt"].assert_eq(&help(&["simulate"]));
    expect_file!["../../tests/help/make-data.txt"].assert_eq(&help(&["make-data"]));
    expect_file!["../../tests/help/bench-decisions.txt"].assert_eq(&help(&["bench", "decisions"]));
    expect_file!["../../tests/help/bench-transport.txt"].assert_eq(&help(&["bench", "transport"]));
}

#[test]
fn every_flag_has_help() {
    let mut command = Cli::command();
    command.build();
    for subcommand in command.get_subcommands() {
        for argument in subcommand.get_arguments() {
            assert!(argument.get_help().is_some(), "{} {}", subcommand.get_name(), argument.get_id());
        }
    }
}

#[test]
fn clap_accepts_the_definition_of_the_command_line() {
    Cli::command().debug_assert();
}
