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
        photographs   11898    40000  29.7 %              26.2            0.0  -             it gets 11898 of the 29091 rows/s that it could have alone, since it shares workers with other jobs
        text         247223  1662338  14.9 %              37.8            0.0  burn on disk  it gets 247223 of the 418301 rows/s that it could have alone, since it shares workers with other jobs

        workers  cores   memory  present  wanted
        general     16  68.7 GB        4      20
        fast         8  32.0 GB        0       4

        cached  tier      size  read by
        burn    disk  150.0 GB  text

        objective  smallest fed fraction 29.7 %, weighted sum 0.372, cost 3.21 per hour
        bound      smallest fed fraction 29.7 %, weighted sum 0.372: the plan is within 0.0 % of the optimum

        reasons
          the smallest fed fraction by weight is 29.7 %; no plan can exceed 29.7 %
          the output of `burn` would be cached in the workers' disks: 150 GB, and 1 job reads it
          job `photographs`: it gets 11898 of the 29091 rows/s that it could have alone, since it shares workers with other jobs
          job `text`: it gets 247223 of the 418301 rows/s that it could have alone, since it shares workers with other jobs
    "#]].assert_eq(&render(&problem, &plan));
}
