//! Test of the text of a plan with two jobs that share workers.

use expect_test::expect;
use feedline_planner::plan::{NoDeadline, solve};

use super::super::cluster_file::tests::parsed;
use super::super::jobs;
use super::*;
use crate::trace_file::tests::trace;

#[test]
fn the_text_contains_tables_and_reasons() {
    let cluster = parsed("jobs: { photographs: { demand_rows_per_s: 40000, weight: 2, cache: never } }");
    let traces = [trace("photographs", 2.0), trace("text", 0.5)];
    let problem = jobs::build_problem(&cluster, &traces, "c.yaml").unwrap();
    let plan = solve(&problem, None, &NoDeadline).unwrap();
    expect![[r#"
        2 jobs on 4 workers

        job          rows/s   demand     fed  cores of general  cores of fast  cached        reason
        photographs   11898    40000  29.7 %              26.2            0.0  -             11898 rows/s instead of 29091 rows/s, because the job shares workers with other jobs
        text         247223  1662338  14.9 %              37.8            0.0  burn on disk  247223 rows/s instead of 418301 rows/s, because the job shares workers with other jobs

        workers  cores   memory  present  wanted
        general     16  68.7 GB        4      20
        fast         8  32.0 GB        0       4

        cached  tier      size  read by
        burn    disk  150.0 GB  text

        objective  smallest fed fraction 29.7 %, weighted sum 0.372, cost 3.21 per hour
        bound      smallest fed fraction 29.7 %, weighted sum 0.372: the plan is within 0.0 % of the optimum

        reasons
          the smallest weighted fed fraction is 29.7 %; the upper bound for any plan is 29.7 %
          cache the output of `burn` in the workers' disks: 150 GB, read by 1 job
          job `photographs`: 11898 rows/s instead of 29091 rows/s, because the job shares workers with other jobs
          job `text`: 247223 rows/s instead of 418301 rows/s, because the job shares workers with other jobs
    "#]].assert_eq(&render(&problem, &plan));
}
