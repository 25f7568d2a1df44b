//! Tests of the flags for scaling, and of their conflicts.

use super::super::{Cli, Command, parse};
use super::*;

/// Parses and checks the flags of `feedline coordinator`.
fn plan(flags: &[&str]) -> Result<Option<ScalingPlan>, String> {
    let words = ["feedline", "coordinator", "--data-dir", "d"].iter().chain(flags);
    let parsed = parse::<Cli>(words).map_err(|error| error.to_string())?;
    let Command::Coordinator(args) = parsed.args.command else { panic!("the command is `coordinator`") };
    args.scaling.plan().map_err(|failure| {
        assert_eq!(failure.status(), 2);
        failure.to_string()
    })
}

fn target(pool: &str, kind: WorkloadKind, object: &str, bounds: (u32, u32)) -> PoolTarget {
    let limits = PoolLimits { pool: pool.to_owned(), min_workers: bounds.0, max_workers: bounds.1 };
    PoolTarget { limits, kind, object: object.to_owned() }
}

#[test]
fn without_flags_nothing_is_scaled() {
    assert_eq!(plan(&[]), Ok(None));
}

#[test]
fn the_flags_of_the_chart_are_valid() {
    let found = plan(&[
        "--scale-pool=spot=deployment/demo-feedline-worker-spot:1..100",
        "--scale-pool=disk=statefulset/demo-feedline-worker-disk:4..8",
        "--shrink-after=10m",
        "--scaler=kubernetes",
        "--scale-victims=kubernetes",
    ]);
    let pools = vec![
        target("spot", WorkloadKind::Deployment, "demo-feedline-worker-spot", (1, 100)),
        target("disk", WorkloadKind::StatefulSet, "demo-feedline-worker-disk", (4, 8)),
    ];
    let settings = KubernetesScalerSettings { namespace: None, pools, victims: VictimChoice::Kubernetes };
    let shrink_after = Duration::from_secs(600);
    assert_eq!(found, Ok(Some(ScalingPlan { scaler: ScalerChoice::Kubernetes(settings), shrink_after })));
    let keda = ["--scaler=keda", "--scale-pool=a=deployment/w:2..2", "--scaler-listen=0.0.0.0:7072"];
    let pools = vec![target("a", WorkloadKind::Deployment, "w", (2, 2)).limits];
    let scaler = ScalerChoice::Keda { pools, listen: "0.0.0.0:7072".to_owned() };
    assert_eq!(plan(&keda), Ok(Some(ScalingPlan { scaler, shrink_after: DEFAULT_SHRINK_AFTER })));
}

#[test]
fn flags_without_an_effect_are_rejected() {
    for (flags, part) in [
        (&["--scale-pool=a=deployment/w:1..2"][..], "--scale-pool has no effect without --scaler"),
        (&["--scale-victims=planner"], "--scale-victims has no effect without --scaler"),
        (&["--shrink-after=1m"], "--shrink-after has no effect without --scaler"),
        (&["--scaler-listen=0.0.0.0:7072"], "--scaler-listen has no effect without --scaler"),
        (&["--namespace=ml"], "--namespace has no effect without --scaler"),
        (&["--scaler=kubernetes"], "--scaler has no pool"),
        (
            &["--scaler=kubernetes", "--scale-pool=a=deployment/w:1..2", "--scale-pool=a=deployment/v:1..2"],
            "contains the pool a twice",
        ),
        (
            &["--scaler=kubernetes", "--scale-pool=a=deployment/w:1..2", "--scale-pool=b=deployment/w:1..2"],
            "contains deployment/w for two pools",
        ),
        (
            &["--scaler=kubernetes", "--scale-pool=a=deployment/w:1..2", "--scaler-listen=h:1"],
            "--scaler-listen has no effect with --scaler kubernetes",
        ),
        (
            &["--scaler=kubernetes", "--scale-pool=a=statefulset/w:1..2", "--scale-victims=planner"],
            "--scale-victims planner cannot be used with statefulset/w",
        ),
        (&["--scaler=keda", "--scale-pool=a=deployment/w:1..2"], "--scaler keda needs an address"),
        (
            &[
                "--scaler=keda",
                "--scale-pool=a=deployment/w:1..2",
                "--scaler-listen=h:1",
                "--scale-victims=planner",
            ],
            "--scale-victims has no effect with --scaler keda",
        ),
        (
            &["--scaler=keda", "--scale-pool=a=deployment/w:1..2", "--scaler-listen=h:1", "--namespace=ml"],
            "--namespace has no effect with --scaler keda",
        ),
    ] {
        let error = plan(flags).expect_err("the flags are rejected");
        assert!(error.contains(part), "{flags:?}: {error}");
    }
}

#[test]
fn an_invalid_pool_is_rejected_with_the_reason() {
    for (pool, part) in [
        ("", "expected POOL=KIND/OBJECT:MIN..MAX"),
        ("deployment/w:1..2", "expected POOL=KIND/OBJECT:MIN..MAX"),
        ("a=deployment/w", "expected POOL=KIND/OBJECT:MIN..MAX"),
        ("=deployment/w:1..2", "the name before = is empty"),
        ("Spot=deployment/w:1..2", "invalid pool `Spot`"),
        ("a=daemonset/w:1..2", "invalid kind `daemonset`: expected deployment or statefulset"),
        ("a=deployment/:1..2", "invalid object ``"),
        ("a=deployment/W_1:1..2", "invalid object `W_1`"),
        ("a=deployment/w:0..2", "at least one worker"),
        ("a=deployment/w:3..2", "MIN 3 is larger than MAX 2"),
        ("a=deployment/w:1..10001", "numbers from 1 to 10000"),
        ("a=deployment/w:4", "expected MIN..MAX"),
    ] {
        let error = parse_pool_target(pool).expect_err("the pool is rejected");
        assert!(error.contains(part), "{pool}: {error}");
    }
}
