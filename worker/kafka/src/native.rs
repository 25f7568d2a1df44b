//! Calls of librdkafka that the crate `rdkafka` does not wrap: reading one partition in batches without a consumer group.

pub(crate) mod admin;

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::TopicPartitionList;
use rdkafka::bindings as sys;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;

use crate::context::Context;

/// The type of the client.
pub(crate) type Client = BaseConsumer<Context>;

fn client_ptr(client: &Client) -> *mut sys::rd_kafka_t {
    client.client().native_ptr()
}

fn milliseconds(timeout: Duration) -> i32 {
    i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX)
}

/// A queue of librdkafka.
struct Queue {
    queue: NonNull<sys::rd_kafka_queue_t>,
    /// The queue must not outlive its client.
    _client: Arc<Client>,
}

// SAFETY: librdkafka locks its queues, so any thread may use them.
unsafe impl Send for Queue {}

impl Queue {
    pub(crate) fn new(client: &Arc<Client>) -> Option<Self> {
        // SAFETY: the client is alive, and the queue keeps it alive.
        let queue = unsafe { sys::rd_kafka_queue_new(client_ptr(client)) };
        Some(Self { queue: NonNull::new(queue)?, _client: Arc::clone(client) })
    }

    pub(crate) fn as_ptr(&self) -> *mut sys::rd_kafka_queue_t {
        self.queue.as_ptr()
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the queue was created by `rd_kafka_queue_new`, and nothing else destroys it.
        unsafe { sys::rd_kafka_queue_destroy(self.queue.as_ptr()) }
    }
}

/// A partition that librdkafka fetches. At most one exists for each partition of a client.
pub(crate) struct FetchedPartition {
    client: Arc<Client>,
    topic: NonNull<sys::rd_kafka_topic_t>,
    partition: i32,
    queue: Queue,
}

// SAFETY: librdkafka locks its topics and queues, so any thread may use them.
unsafe impl Send for FetchedPartition {}

impl FetchedPartition {
    /// Starts to fetch records from an offset.
    pub(crate) fn start(
        client: &Arc<Client>,
        topic: &str,
        partition: i32,
        offset: i64,
    ) -> Result<Self, RDKafkaErrorCode> {
        let name = CString::new(topic).map_err(|_| RDKafkaErrorCode::InvalidTopic)?;
        let queue = Queue::new(client).ok_or(RDKafkaErrorCode::Fail)?;
        // SAFETY: the client is alive, the name ends with a null byte and is copied, and no configuration is passed.
        let topic = unsafe { sys::rd_kafka_topic_new(client_ptr(client), name.as_ptr(), ptr::null_mut()) };
        let topic = NonNull::new(topic).ok_or_else(last_error)?;
        // The destructor may stop a partition that was not started.
        let started = Self { client: Arc::clone(client), topic, partition, queue };
        // SAFETY: topic and queue belong to the client, and `started` keeps all three alive.
        let result = unsafe {
            sys::rd_kafka_consume_start_queue(topic.as_ptr(), partition, offset, started.queue.as_ptr())
        };
        if result == 0 { Ok(started) } else { Err(last_error()) }
    }

    /// Continues at another offset. Records that were fetched before are no longer returned.
    pub(crate) fn seek(&mut self, offset: i64, timeout: Duration) -> Result<(), RDKafkaErrorCode> {
        // SAFETY: the topic is alive, and the partition is being fetched.
        let error =
            unsafe { sys::rd_kafka_seek(self.topic.as_ptr(), self.partition, offset, milliseconds(timeout)) };
        match RDKafkaErrorCode::from(error) {
            RDKafkaErrorCode::NoError => Ok(()),
            error => Err(error),
        }
    }

    /// Continues at an offset like [`Self::seek`]. If the log has lost the record before the offset, which has this leader epoch, the
    /// next message is the event [`RDKafkaErrorCode::AutoOffsetReset`].
    pub(crate) fn seek_verified(
        &mut self,
        offset: i64,
        leader_epoch: i32,
        timeout: Duration,
    ) -> Result<(), RDKafkaErrorCode> {
        // SAFETY: the client and the topic are alive. The name is copied, `place` is the only element of the list, and list and error are
        // destroyed once, after their last use. A null pointer means success.
        let code = unsafe {
            let list = sys::rd_kafka_topic_partition_list_new(1);
            let name = sys::rd_kafka_topic_name(self.topic.as_ptr());
            let place = sys::rd_kafka_topic_partition_list_add(list, name, self.partition);
            (*place).offset = offset;
            sys::rd_kafka_topic_partition_set_leader_epoch(place, leader_epoch);
            let error = sys::rd_kafka_seek_partitions(client_ptr(&self.client), list, milliseconds(timeout));
            let code = if error.is_null() { (*place).err } else { sys::rd_kafka_error_code(error) };
            sys::rd_kafka_error_destroy(error);
            sys::rd_kafka_topic_partition_list_destroy(list);
            code
        };
        match RDKafkaErrorCode::from(code) {
            RDKafkaErrorCode::NoError => Ok(()),
            error => Err(error),
        }
    }

    /// Appends at most `count` messages that have arrived. Waits at most for `timeout` if no message has arrived.
    pub(crate) fn receive(&mut self, messages: &mut Messages, count: usize, timeout: Duration) {
        if self.receive_available(messages, count, Duration::ZERO) == 0 {
            // librdkafka waits until all messages have arrived, so only the first one is awaited.
            self.receive_available(messages, 1, timeout);
        }
    }

    fn receive_available(&mut self, messages: &mut Messages, count: usize, timeout: Duration) -> usize {
        let mut batch: Vec<*mut sys::rd_kafka_message_t> = vec![ptr::null_mut(); count];
        // SAFETY: the queue is alive, and the array has room for `count` pointers.
        let received = unsafe {
            sys::rd_kafka_consume_batch_queue(
                self.queue.as_ptr(),
                milliseconds(timeout),
                batch.as_mut_ptr(),
                count,
            )
        };
        let received = usize::try_from(received).unwrap_or(0);
        messages.list.extend(batch.into_iter().take(received).filter_map(NonNull::new).map(Message));
        received
    }
}

impl Drop for FetchedPartition {
    fn drop(&mut self) {
        debug_assert!(Arc::strong_count(&self.client) > 0);
        // SAFETY: the topic was created by `rd_kafka_topic_new`, and its client is alive. The partition may not have been started,
        // which librdkafka reports as an error.
        unsafe {
            sys::rd_kafka_consume_stop(self.topic.as_ptr(), self.partition);
            sys::rd_kafka_topic_destroy(self.topic.as_ptr());
        }
    }
}

/// The leader epoch of each partition of a list, if known.
pub(crate) fn leader_epochs(list: &TopicPartitionList) -> Vec<Option<i32>> {
    // SAFETY: the list is alive, and nothing changes it during the call.
    let list = unsafe { &*list.ptr() };
    let epoch = |index: usize| {
        // SAFETY: the index is less than the number of elements.
        let epoch = unsafe { sys::rd_kafka_topic_partition_get_leader_epoch(list.elems.add(index)) };
        (epoch >= 0).then_some(epoch)
    };
    (0..usize::try_from(list.cnt).unwrap_or(0)).map(epoch).collect()
}

fn last_error() -> RDKafkaErrorCode {
    // SAFETY: the function reads a variable of this thread.
    unsafe { sys::rd_kafka_last_error() }.into()
}

/// Messages that have arrived, in the order of their offsets. Messages must not outlive the client.
#[derive(Default)]
pub(crate) struct Messages {
    list: VecDeque<Message>,
}

impl Messages {
    /// Returns the next message.
    pub(crate) fn first(&self) -> Option<&Message> {
        self.list.front()
    }

    /// Removes the next message.
    pub(crate) fn remove_first(&mut self) {
        self.list.pop_front();
    }

    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }
}

/// A message of a partition: a record, or an event such as the end of the partition.
pub(crate) struct Message(NonNull<sys::rd_kafka_message_t>);

// SAFETY: a message belongs to its owner alone; librdkafka's reference counts, which it shares, are atomic.
unsafe impl Send for Message {}

impl Message {
    fn get(&self) -> &sys::rd_kafka_message_t {
        // SAFETY: the message is alive until `drop`.
        unsafe { self.0.as_ref() }
    }

    /// The event of the message; `None` for a record.
    pub(crate) fn event(&self) -> Option<RDKafkaErrorCode> {
        match RDKafkaErrorCode::from(self.get().err) {
            RDKafkaErrorCode::NoError => None,
            event => Some(event),
        }
    }

    /// The text of an event.
    pub(crate) fn event_text(&self) -> String {
        // SAFETY: the message is alive, and the text lives as long.
        let text = unsafe { sys::rd_kafka_message_errstr(self.0.as_ptr()) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: librdkafka returns text that ends with a null byte.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    pub(crate) fn offset(&self) -> i64 {
        self.get().offset
    }

    /// The epoch of the leader that appended the record; negative if unknown.
    pub(crate) fn leader_epoch(&self) -> i32 {
        // SAFETY: the message is alive.
        unsafe { sys::rd_kafka_message_leader_epoch(self.0.as_ptr()) }
    }

    pub(crate) fn key(&self) -> Option<&[u8]> {
        let message = self.get();
        // SAFETY: librdkafka describes the key of the message, which lives as long as the message.
        unsafe { bytes(message.key, message.key_len) }
    }

    pub(crate) fn value(&self) -> Option<&[u8]> {
        let message = self.get();
        // SAFETY: librdkafka describes the payload of the message, which lives as long as the message.
        unsafe { bytes(message.payload, message.len) }
    }

    /// Milliseconds since 1970; `None` if the record has no timestamp.
    pub(crate) fn timestamp_ms(&self) -> Option<i64> {
        let mut kind = sys::rd_kafka_timestamp_type_t::RD_KAFKA_TIMESTAMP_NOT_AVAILABLE;
        // SAFETY: the message is alive, and `kind` is a valid place for the result.
        let timestamp = unsafe { sys::rd_kafka_message_timestamp(self.0.as_ptr(), &mut kind) };
        (timestamp >= 0).then_some(timestamp)
    }

    /// Calls `on_header` with the name and the value of each header.
    pub(crate) fn for_each_header(&self, mut on_header: impl FnMut(&[u8], Option<&[u8]>)) {
        let mut headers = ptr::null_mut();
        // SAFETY: the message is alive, and `headers` is a valid place for the result.
        let error = unsafe { sys::rd_kafka_message_headers(self.0.as_ptr(), &mut headers) };
        if RDKafkaErrorCode::from(error) != RDKafkaErrorCode::NoError || headers.is_null() {
            return;
        }
        for index in 0.. {
            let (mut name, mut value, mut length) = (ptr::null(), ptr::null(), 0);
            // SAFETY: the headers live as long as the message, and the other pointers are valid places for the results.
            let error =
                unsafe { sys::rd_kafka_header_get_all(headers, index, &mut name, &mut value, &mut length) };
            if RDKafkaErrorCode::from(error) != RDKafkaErrorCode::NoError || name.is_null() {
                return;
            }
            // SAFETY: librdkafka returns a name that ends with a null byte, and a value of this length.
            let (name, value) = unsafe { (CStr::from_ptr(name), bytes(value, length)) };
            on_header(name.to_bytes(), value);
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: the message was received from a queue, and nothing else destroys it.
        unsafe { sys::rd_kafka_message_destroy(self.0.as_ptr()) }
    }
}

/// Returns a slice; `None` for a null pointer.
///
/// # Safety
/// `start` is null, or points to `length` bytes that are valid for `'a`.
unsafe fn bytes<'a>(start: *const std::ffi::c_void, length: usize) -> Option<&'a [u8]> {
    if start.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees it.
    Some(unsafe { std::slice::from_raw_parts(start.cast::<u8>(), length) })
}

/// Copies a text; empty for a null pointer.
///
/// # Safety
/// `start` is null, or points to a text that ends with a null byte.
unsafe fn text(start: *const std::ffi::c_char) -> String {
    if start.is_null() {
        return String::new();
    }
    // SAFETY: the caller guarantees it.
    unsafe { CStr::from_ptr(start) }.to_string_lossy().into_owned()
}
