//! Tests of the requests of one worker.

use feedline_data::ids::JobId;

use super::*;

const REQUEST: PacedRequest = PacedRequest { id: 1, job: JobId(1), bytes: 10 };

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// Adds a request and sends it as soon as possible. Returns the time.
fn send(pacer: &mut Pacer, mut now: Duration) -> Duration {
    pacer.push(now, REQUEST, false);
    loop {
        match pacer.next(now) {
            NextRequest::Send(_) => return now,
            NextRequest::At(time) => now = time,
            NextRequest::Blocked => panic!("blocked at {now:?}"),
        }
    }
}

fn send_and_finish(pacer: &mut Pacer, now: Duration) -> Duration {
    let sent = send(pacer, now);
    pacer.on_success(REQUEST, 10, seconds(0.01));
    sent
}

#[test]
fn the_window_of_a_new_store_doubles_with_each_round_trip() {
    let mut pacer = Pacer::new(1);
    let mut sizes = Vec::new();
    for round in 0..6 {
        let now = seconds(f64::from(round));
        let mut sent = 0;
        loop {
            pacer.push(now, REQUEST, false);
            let NextRequest::Send(_) = pacer.next(now) else { break };
            sent += 1;
        }
        pacer.remove(REQUEST);
        (0..sent).for_each(|_| pacer.on_success(REQUEST, 10, seconds(0.1)));
        sizes.push(sent);
    }
    assert_eq!(sizes, [4, 8, 16, 32, 64, 128]);
}

#[test]
fn requests_are_spread_evenly_and_late_timers_catch_up() {
    let mut pacer = Pacer::new(1);
    let share = StoreShare { requests_per_s: 4.0, ..StoreShare::default() };
    pacer.set_share(Duration::ZERO, &share);
    let first = send_and_finish(&mut pacer, Duration::ZERO);
    assert!(first <= seconds(0.25), "the first request has a random phase: {first:?}");
    let mut last = first;
    for _ in 0..20 {
        let next = send_and_finish(&mut pacer, last);
        assert!((next - last).abs_diff(seconds(0.25)) < seconds(0.001), "{last:?} {next:?}");
        last = next;
    }
    // A timer that is late does not delay the following requests.
    let late = send_and_finish(&mut pacer, last + seconds(0.4));
    let next = send_and_finish(&mut pacer, late);
    assert!(next - last < seconds(0.51), "{last:?} {next:?}");
    // A long pause does not allow a burst.
    let idle = send_and_finish(&mut pacer, last + seconds(60.0));
    let fourth = (0..3).fold(idle, |time, _| send_and_finish(&mut pacer, time));
    assert!(fourth - idle >= seconds(0.74), "{idle:?} {fourth:?}");
}

#[test]
fn the_limits_of_requests_and_bytes_in_flight_allow_at_least_one_request() {
    let mut pacer = Pacer::new(1);
    pacer
        .set_share(Duration::ZERO, &StoreShare { in_flight: 2, bytes_in_flight: 5, ..StoreShare::default() });
    assert_eq!(send(&mut pacer, Duration::ZERO), Duration::ZERO);
    pacer.push(Duration::ZERO, REQUEST, false);
    assert_eq!(pacer.next(Duration::ZERO), NextRequest::Blocked);
    pacer.on_success(REQUEST, 10, seconds(0.1));
    assert_eq!(pacer.next(Duration::ZERO), NextRequest::Send(REQUEST));
}

#[test]
fn a_pause_ends_at_a_random_phase_and_is_reported_as_it_passes() {
    let ends: Vec<Duration> = (1..20)
        .map(|seed| {
            let mut pacer = Pacer::new(seed);
            pacer.set_share(Duration::ZERO, &StoreShare { requests_per_s: 2.0, ..StoreShare::default() });
            let sent = send(&mut pacer, Duration::ZERO);
            pacer.on_rejection(sent, REQUEST, Some(seconds(3.0)));
            assert_eq!(pacer.report(sent).paused_ns, 0);
            assert_eq!(pacer.report(sent + seconds(1.0)).paused_ns, 1_000_000_000);
            send(&mut pacer, sent) - sent
        })
        .collect();
    let (least, most) = (ends.iter().min().expect("some"), ends.iter().max().expect("some"));
    assert!(*least >= seconds(3.0) && *most <= seconds(3.5), "{ends:?}");
    assert!(*most - *least > seconds(0.2), "{ends:?}");
}

#[test]
fn a_rejected_request_is_the_next_one_of_its_job() {
    let mut pacer = Pacer::new(1);
    let request = |id| PacedRequest { id, ..REQUEST };
    (1..=3).for_each(|id| pacer.push(Duration::ZERO, request(id), false));
    assert_eq!(pacer.next(Duration::ZERO), NextRequest::Send(request(1)));
    pacer.on_rejection(Duration::ZERO, request(1), Some(seconds(1.0)));
    pacer.push(Duration::ZERO, request(1), true);
    assert_eq!(pacer.next(seconds(1.0)), NextRequest::Send(request(1)));
}

#[test]
fn jobs_share_a_store_in_proportion_to_their_weights() {
    let mut pacer = Pacer::new(1);
    let jobs = vec![(JobId(1), 3.0), (JobId(2), 1.0)];
    pacer.set_share(Duration::ZERO, &StoreShare { in_flight: 1, jobs, ..StoreShare::default() });
    for id in 0..400 {
        let job = JobId(1 + id % 2);
        pacer.push(Duration::ZERO, PacedRequest { id, job, bytes: 1 }, false);
    }
    assert_eq!(send_waiting(&mut pacer, 200), [0, 150, 50]);
}

/// Sends a number of waiting requests. Returns how many each of the jobs 0 to 2 has sent.
fn send_waiting(pacer: &mut Pacer, count: u32) -> [u32; 3] {
    let mut counts = [0; 3];
    for _ in 0..count {
        let NextRequest::Send(request) = pacer.next(Duration::ZERO) else { panic!("a request waits") };
        counts[request.job.0 as usize] += 1;
        pacer.on_success(request, 1, seconds(0.01));
    }
    counts
}

#[test]
fn a_job_that_had_no_demand_shares_the_store_from_the_next_part_on() {
    for first in [vec![(JobId(1), 1.0)], vec![(JobId(1), 1.0), (JobId(2), 0.0)]] {
        let mut pacer = Pacer::new(1);
        let share = |jobs| StoreShare { in_flight: 1, jobs, ..StoreShare::default() };
        pacer.set_share(Duration::ZERO, &share(first));
        for id in 0..40 {
            pacer.push(Duration::ZERO, PacedRequest { id, job: JobId(1 + id % 2), bytes: 1 }, false);
        }
        assert_eq!(send_waiting(&mut pacer, 2), [0, 1, 1]);
        pacer.set_share(Duration::ZERO, &share(vec![(JobId(1), 1.0), (JobId(2), 1.0)]));
        assert_eq!(send_waiting(&mut pacer, 20), [0, 10, 10]);
    }
}

#[test]
fn slow_reads_are_sent_again_only_without_limits_and_queues() {
    let mut pacer = Pacer::new(1);
    let mut now = Duration::ZERO;
    assert_eq!(pacer.slow_after(REQUEST.bytes), None);
    for _ in 0..2000 {
        now = send_and_finish(&mut pacer, now);
    }
    assert!(pacer.slow_after(REQUEST.bytes).is_some_and(|after| after >= seconds(0.02)));
    assert!(pacer.try_hedge(now));
    pacer.push(now, REQUEST, false);
    assert!(!pacer.try_hedge(now), "another request waits");
    pacer.remove(REQUEST);
    pacer.set_share(now, &StoreShare { requests_per_s: 100.0, ..StoreShare::default() });
    assert!(!pacer.try_hedge(now), "the leader limits the worker");
    pacer.set_share(now, &StoreShare::default());
    assert!(pacer.try_hedge(now));
    let sent = send(&mut pacer, now);
    pacer.on_rejection(sent, REQUEST, None);
    let sent = send_and_finish(&mut pacer, sent + seconds(9.9));
    assert!(!pacer.try_hedge(sent), "the store has rejected a request");
    assert!(pacer.try_hedge(sent + seconds(0.2)));
}

#[test]
fn a_read_that_its_second_request_outran_counts_as_slow() {
    let mut pacer = Pacer::new(1);
    let mut now = Duration::ZERO;
    for read in 0..4000 {
        now = send(&mut pacer, now);
        if read % 50 == 0 {
            pacer.on_hedge_won(REQUEST.bytes, seconds(0.5));
            pacer.on_cancel(REQUEST);
        } else {
            pacer.on_success(REQUEST, 10, seconds(0.01));
        }
    }
    assert!(pacer.slow_after(REQUEST.bytes).is_some_and(|after| after >= seconds(0.5)));
    assert_eq!(pacer.report(now).accepted, 3920);
}

#[test]
fn a_part_of_less_than_a_request_per_second_is_respected() {
    let mut pacer = Pacer::new(1);
    pacer.set_share(Duration::ZERO, &StoreShare { requests_per_s: 0.05, ..StoreShare::default() });
    let first = send_and_finish(&mut pacer, Duration::ZERO);
    let second = send_and_finish(&mut pacer, first);
    assert!((second - first).abs_diff(seconds(20.0)) < seconds(0.01), "{first:?} {second:?}");
}

#[test]
fn pauses_that_the_store_asks_for_are_not_rejections_for_some_minutes() {
    let mut pacer = Pacer::new(1);
    let mut now = send(&mut pacer, Duration::ZERO);
    for _ in 0..2 {
        pacer.on_rejection(now, REQUEST, Some(seconds(120.0)));
        now = send(&mut pacer, now);
    }
    assert!(
        pacer.rejecting_for(now).is_some_and(|time| time < seconds(2.0)),
        "{:?}",
        pacer.rejecting_for(now)
    );
    pacer.on_rejection(now, REQUEST, Some(seconds(200.0)));
    now = send(&mut pacer, now);
    assert!(pacer.rejecting_for(now).is_some_and(|time| time > seconds(130.0)));
    pacer.on_success(REQUEST, 10, seconds(0.01));
    assert_eq!(pacer.rejecting_for(now), None);
}

#[test]
fn a_request_that_others_have_joined_counts_with_its_new_size() {
    let mut pacer = Pacer::new(1);
    pacer.set_share(
        Duration::ZERO,
        &StoreShare { in_flight: 2, bytes_in_flight: 50, ..StoreShare::default() },
    );
    let mut request = REQUEST;
    send(&mut pacer, Duration::ZERO);
    pacer.set_bytes(&mut request, 45);
    pacer.push(Duration::ZERO, REQUEST, false);
    assert_eq!(pacer.next(Duration::ZERO), NextRequest::Blocked);
    pacer.on_success(request, 45, seconds(0.1));
    assert_eq!(pacer.next(Duration::ZERO), NextRequest::Send(REQUEST));
    assert_eq!(pacer.bytes_in_flight, 10);
}

#[test]
fn a_part_without_a_leader_shrinks_while_the_store_rejects_requests_and_returns() {
    let mut pacer = Pacer::new(1);
    let share = StoreShare { requests_per_s: 10.0, ..StoreShare::default() };
    pacer.set_share(Duration::ZERO, &share);
    let mut rates = Vec::new();
    for second in 1..=200 {
        let now = seconds(f64::from(second));
        let sent = send(&mut pacer, now);
        match second {
            1..=100 => pacer.on_rejection(sent, REQUEST, None),
            // The store asks for a pause, in which it does not accept requests.
            101..=110 => pacer.on_cancel(REQUEST),
            _ => pacer.on_success(REQUEST, 10, seconds(0.01)),
        }
        pacer.tick(now);
        rates.push(pacer.report(now).requests_per_s);
    }
    assert_eq!(rates[3], 10.0, "the leader is expected to react first");
    assert!(rates[19] < 7.0 && rates[19] > 5.0, "{rates:?}");
    assert_eq!((rates[99], rates[109]), (5.0, 5.0), "an outage does not stop the worker");
    assert!(rates[119] > 5.0 && rates[119] < 6.0, "{rates:?}");
    assert_eq!(rates[199], 10.0, "the worker keeps its last part");
}

#[test]
fn a_leader_restores_a_reduced_part() {
    let mut pacer = Pacer::new(1);
    let share = StoreShare { requests_per_s: 10.0, ..StoreShare::default() };
    pacer.set_share(Duration::ZERO, &share);
    let sent = send(&mut pacer, seconds(6.0));
    pacer.on_rejection(sent, REQUEST, None);
    pacer.tick(seconds(7.0));
    assert_eq!(pacer.report(seconds(7.0)).requests_per_s, 9.7);
    pacer.set_share(seconds(8.0), &share);
    assert_eq!(pacer.report(seconds(8.0)).requests_per_s, 10.0);
}

#[test]
fn workers_that_begin_at_the_same_time_do_not_send_a_burst() {
    let mut pacers: Vec<Pacer> = (1..=48).map(|seed| Pacer::new(seed * 7919)).collect();
    let share = StoreShare { requests_per_s: 6.0, ..StoreShare::default() };
    let begun = seconds(10.0);
    for pacer in &mut pacers {
        pacer.set_share(Duration::ZERO, &share);
        (0..4).for_each(|id| pacer.push(begun, PacedRequest { id, ..REQUEST }, false));
    }
    let mut sent_until = |ms: u64| {
        let now = begun + Duration::from_millis(ms);
        let mut sent = 0;
        for pacer in &mut pacers {
            while let NextRequest::Send(request) = pacer.next(now) {
                pacer.on_success(request, 1, seconds(0.01));
                sent += 1;
            }
        }
        sent
    };
    let sent: Vec<u32> = (1..=70).map(|step| sent_until(10 * step)).collect();
    let most = sent.windows(5).map(|window| window.iter().sum::<u32>()).max();
    assert!(most.is_some_and(|most| most < 40), "{sent:?}");
    assert_eq!(sent.iter().sum::<u32>(), 4 * 48);
}

#[test]
fn the_first_request_of_an_idle_worker_with_a_tiny_part_does_not_wait_for_minutes() {
    for seed in 1..20 {
        let mut pacer = Pacer::new(seed);
        let begun = seconds(100.0);
        pacer.set_share(begun, &StoreShare { requests_per_s: 0.003, ..StoreShare::default() });
        assert!(send(&mut pacer, begun) <= begun + seconds(1.0), "{seed}");
    }
}

#[test]
fn workers_that_wait_spread_the_first_requests_of_a_small_part() {
    let firsts = (1..20).map(|seed| {
        let mut pacer = Pacer::new(seed);
        pacer.push(Duration::ZERO, REQUEST, false);
        pacer.set_share(Duration::ZERO, &StoreShare { requests_per_s: 0.1, ..StoreShare::default() });
        send(&mut pacer, Duration::ZERO)
    });
    assert!(firsts.max().is_some_and(|last| last > seconds(5.0)));
}

#[test]
fn large_requests_use_half_of_the_requests_in_flight() {
    let mut pacer = Pacer::new(1);
    let share = StoreShare { in_flight: 4, bytes_in_flight: 12, ..StoreShare::default() };
    pacer.set_share(Duration::ZERO, &share);
    (0..4).for_each(|id| pacer.push(Duration::ZERO, PacedRequest { id, ..REQUEST }, false));
    assert!(matches!(pacer.next(Duration::ZERO), NextRequest::Send(_)));
    assert!(matches!(pacer.next(Duration::ZERO), NextRequest::Send(_)));
    assert_eq!(pacer.next(Duration::ZERO), NextRequest::Blocked);
}
