//! Reads ranges of objects through a governor, and sends a slow read a second time: the first response wins.

use std::time::Duration;

use futures::StreamExt;
use object_store::{GetResult, GetResultPayload, Result};
use tokio::time::sleep;

use crate::bounded_store::in_flight_until_read;
use crate::governor::{Demand, Permit};
use crate::requests::{GovernedRequests, RequestTag};
use crate::responses::read_stream;
use crate::throttling::{count_hedge_won, count_hedged};

impl GovernedRequests {
    /// Reads a range of `bytes`, which `tag` may have enlarged when the request is sent.
    pub(crate) async fn read<F: Future<Output = Result<GetResult>>>(
        &self,
        tag: &RequestTag,
        bytes: u64,
        get: impl Fn() -> F,
    ) -> Result<GetResult> {
        if self.governor.slow_after(bytes).is_none() {
            let (result, permit) = self.send(tag, bytes, get).await?;
            return Ok(in_flight_until_read(result, permit));
        }
        let first = async {
            let (result, permit) = self.send(tag, bytes, &get).await?;
            read_body(result, permit, requested(tag, bytes)).await
        };
        tokio::pin!(first);
        tokio::select! {
            biased;
            result = &mut first => return result,
            () = self.until_slow(tag, bytes) => {}
        }
        if !self.governor.try_hedge() {
            return first.await;
        }
        count_hedged(self.governor.kind());
        let second = self.read_again(tag, bytes, &get);
        tokio::select! {
            biased;
            result = &mut first => result,
            // The first request goes on if the second fails.
            Ok(result) = second => {
                count_hedge_won(self.governor.kind());
                if let Some(latency) = tag.clock.in_flight_for() {
                    self.governor.record_hedge_won(requested(tag, bytes), latency);
                }
                Ok(result)
            }
        }
    }

    /// Waits until an attempt of the request has been in flight for long.
    async fn until_slow(&self, tag: &RequestTag, bytes: u64) {
        loop {
            let Some(after) = self.governor.slow_after(requested(tag, bytes)) else {
                return std::future::pending().await;
            };
            let in_flight = tag.clock.in_flight_for().unwrap_or(Duration::ZERO);
            if in_flight >= after {
                return;
            }
            sleep(after - in_flight).await;
        }
    }

    /// Sends the second request, once.
    async fn read_again<F: Future<Output = Result<GetResult>>>(
        &self,
        tag: &RequestTag,
        bytes: u64,
        get: &impl Fn() -> F,
    ) -> Result<GetResult> {
        let demand = Demand { job: tag.job, bytes: requested(tag, bytes), is_repeated: false };
        let permit = self.governor.acquire(demand).await;
        let (result, permit) = Self::attempt(permit, get).await.map_err(|(error, _)| error)?;
        read_body(result, permit, requested(tag, bytes)).await
    }
}

/// The number of bytes that the request of a read asks for.
fn requested(tag: &RequestTag, bytes: u64) -> u64 {
    tag.merged.as_ref().map_or(bytes, |merged| {
        let range = merged.range();
        range.end - range.start
    })
}

/// Reads the body of the response to a request for `wanted` bytes.
async fn read_body(result: GetResult, permit: Permit, wanted: u64) -> Result<GetResult> {
    let mut result = in_flight_until_read(result, permit);
    let GetResultPayload::Stream(body) = result.payload else { return Ok(result) };
    let bytes = read_stream(body, wanted).await?;
    result.payload = GetResultPayload::Stream(futures::stream::once(async { Ok(bytes) }).boxed());
    Ok(result)
}

#[cfg(test)]
mod tests;
