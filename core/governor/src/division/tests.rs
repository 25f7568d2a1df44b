//! Tests of the division of a budget.

use super::*;

fn claim(tenant: &str, job: u64, worker: u64, demand: f64) -> Claim {
    let (job, worker) = (JobId(job), WorkerId(worker));
    Claim { tenant: tenant.to_owned(), job, weight: 1.0, worker, demand }
}

const ALL: f64 = f64::INFINITY;

#[test]
fn tenants_come_before_jobs_and_jobs_before_workers() {
    let claims = [claim("a", 1, 1, ALL), claim("a", 2, 1, ALL), claim("a", 2, 2, ALL), claim("b", 3, 1, ALL)];
    assert_eq!(divide(120.0, &claims), [30.0, 15.0, 15.0, 60.0]);
}

#[test]
fn whole_parts_have_the_sum_of_the_parts() {
    assert_eq!(round_parts(&[1.25; 8]), [2, 2, 1, 1, 1, 1, 1, 1]);
    assert_eq!(round_parts(&[1.2, 1.9, 0.9]), [1, 2, 1]);
    assert_eq!(round_parts(&[0.3, 0.3, 4.4]), [1, 1, 4], "each has at least one");
    assert_eq!(round_parts(&[]), [0u32; 0]);
}

#[test]
fn what_one_does_not_need_goes_to_the_others() {
    let claims = [claim("a", 1, 1, 10.0), claim("a", 2, 1, ALL), claim("b", 3, 1, 20.0)];
    assert_eq!(divide(120.0, &claims), [10.0, 90.0, 20.0]);
    // The rest is headroom for higher demands.
    let claims = [claim("a", 1, 1, 10.0), claim("a", 2, 1, 20.0)];
    assert_eq!(divide(50.0, &claims), [20.0, 30.0]);
}

#[test]
fn weights_apply_to_jobs_and_to_the_priorities_of_tenants() {
    let heavy = Claim { weight: 3.0, ..claim("a", 1, 1, ALL) };
    assert_eq!(divide(80.0, &[heavy.clone(), claim("a", 2, 1, ALL)]), [60.0, 20.0]);
    assert_eq!(divide(80.0, &[heavy, claim("b", 2, 1, ALL)]), [60.0, 20.0]);
}

#[test]
fn parts_add_up_and_satisfy_small_demands_first() {
    let mut random = 1u64;
    for _ in 0..500 {
        let mut next = |limit: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % limit
        };
        let claims: Vec<Claim> = (0..=next(12))
            .map(|_| {
                let demand = if next(3) == 0 { ALL } else { next(50) as f64 };
                let tenant = ["a", "b", "c"][next(3) as usize];
                Claim { weight: 1.0 + next(4) as f64, ..claim(tenant, next(4), next(5), demand) }
            })
            .collect();
        let parts = divide(100.0, &claims);
        assert!((parts.iter().sum::<f64>() - 100.0).abs() < 1e-6, "{claims:?} {parts:?}");
        assert!(parts.iter().all(|part| *part >= 0.0), "{claims:?} {parts:?}");
        let demand: f64 = claims.iter().map(|claim| claim.demand).sum();
        if demand <= 100.0 {
            let is_satisfied = claims.iter().zip(&parts).all(|(claim, part)| *part >= claim.demand - 1e-9);
            assert!(is_satisfied, "{claims:?} {parts:?}");
        }
    }
    assert!(divide(100.0, &[]).is_empty());
}
