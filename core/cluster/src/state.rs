//! The tracked state of jobs, workers and consumers, with indexes that keep the cost of a step low. The modules of the
//! parent directory make the decisions.

pub(crate) mod candidates;
pub(crate) mod consumer;
pub(crate) mod deadlines;
pub(crate) mod ended_job;
pub(crate) mod first_record;
pub(crate) mod graph_workers;
pub(crate) mod group_commits;
pub(crate) mod isolated_worker;
pub(crate) mod job;
pub(crate) mod job_growth;
mod job_records;
pub(crate) mod leases;
pub(crate) mod long_poll;
pub(crate) mod missing_splits;
pub(crate) mod open_splits;
pub(crate) mod preparation;
pub(crate) mod run_workers;
pub(crate) mod running_jobs;
pub(crate) mod slot_ownership;
pub(crate) mod slot_rebalance;
pub(crate) mod step_queries;
pub(crate) mod streams;
pub(crate) mod suspects;
pub(crate) mod task_queue;
pub(crate) mod visited_map;
pub(crate) mod worker;
