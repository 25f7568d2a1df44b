//! Administrative requests of librdkafka that the crate `rdkafka` does not wrap: descriptions of topics with their ids, and offsets of
//! consumer groups.

use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::TopicPartitionList;
use rdkafka::bindings as sys;
use rdkafka::error::RDKafkaErrorCode;

use super::{Client, Queue, client_ptr, milliseconds, text};

/// Interval in which a request checks whether it was cancelled.
const WAIT_SLICE: Duration = Duration::from_millis(100);

/// An error and its text.
pub(crate) type AdminError = (RDKafkaErrorCode, String);

/// A topic as the cluster describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TopicDescription {
    pub(crate) name: String,
    /// The id in base 64. Clusters before Kafka 2.8 have only the id of zeros.
    pub(crate) id: String,
    /// The id of the leader of each partition; `None` for a partition without a leader.
    pub(crate) leaders: Vec<Option<i32>>,
    /// Why the topic cannot be described.
    pub(crate) error: Option<(RDKafkaErrorCode, String)>,
}

/// Describes topics. An error concerns the whole request.
pub(crate) fn describe_topics(
    client: &Arc<Client>,
    names: &[String],
    timeout: Duration,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Vec<TopicDescription>, AdminError> {
    let invalid = |_| (RDKafkaErrorCode::InvalidTopic, "a name contains a null byte".to_owned());
    let names: Vec<CString> =
        names.iter().map(|name| CString::new(name.as_str())).collect::<Result<_, _>>().map_err(invalid)?;
    let mut pointers: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
    let queue = Queue::new(client).ok_or((RDKafkaErrorCode::Fail, "no memory".to_owned()))?;
    // SAFETY: all arguments are alive during the calls, which copy them; each object that a call creates is destroyed once, and the
    // event is destroyed after the last use of what it contains.
    unsafe {
        let rk = client_ptr(client);
        let topics = sys::rd_kafka_TopicCollection_of_topic_names(pointers.as_mut_ptr(), pointers.len());
        let options = admin_options(rk, sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_DESCRIBETOPICS, timeout);
        sys::rd_kafka_DescribeTopics(rk, topics, options, queue.as_ptr());
        sys::rd_kafka_TopicCollection_destroy(topics);
        sys::rd_kafka_AdminOptions_destroy(options);
        let event = wait_for_result(&queue, timeout, is_cancelled)?;
        let result = read_descriptions(event);
        sys::rd_kafka_event_destroy(event);
        result
    }
}

/// Reads the result of a request for descriptions.
///
/// # Safety
/// `event` is an event of a queue, which is alive during the call.
unsafe fn read_descriptions(event: *mut sys::rd_kafka_event_t) -> Result<Vec<TopicDescription>, AdminError> {
    // SAFETY: the event is alive, and so is everything that it contains.
    unsafe {
        let result = sys::rd_kafka_event_DescribeTopics_result(event);
        if result.is_null() {
            return Err((RDKafkaErrorCode::Fail, "the cluster did not describe the topics".to_owned()));
        }
        let mut count = 0;
        let topics = sys::rd_kafka_DescribeTopics_result_topics(result, &mut count);
        let mut descriptions = Vec::with_capacity(count);
        for index in 0..count {
            let topic = *topics.add(index);
            let error = sys::rd_kafka_TopicDescription_error(topic);
            let code = RDKafkaErrorCode::from(sys::rd_kafka_error_code(error));
            let mut partition_count = 0;
            let partitions = sys::rd_kafka_TopicDescription_partitions(topic, &mut partition_count);
            let mut leaders = vec![None; partition_count];
            for index in 0..partition_count {
                let partition = *partitions.add(index);
                let number = usize::try_from(sys::rd_kafka_TopicPartitionInfo_partition(partition));
                let leader = sys::rd_kafka_TopicPartitionInfo_leader(partition);
                if let Some(known) = number.ok().and_then(|number| leaders.get_mut(number))
                    && !leader.is_null()
                {
                    *known = Some(sys::rd_kafka_Node_id(leader));
                }
            }
            let id = sys::rd_kafka_TopicDescription_topic_id(topic);
            descriptions.push(TopicDescription {
                name: text(sys::rd_kafka_TopicDescription_name(topic)),
                id: if id.is_null() { String::new() } else { text(sys::rd_kafka_Uuid_base64str(id)) },
                leaders,
                error: (code != RDKafkaErrorCode::NoError)
                    .then(|| (code, text(sys::rd_kafka_error_string(error)))),
            });
        }
        Ok(descriptions)
    }
}

/// Sets the offsets of partitions in a consumer group without members.
pub(crate) fn commit_offsets(
    client: &Arc<Client>,
    group: &str,
    offsets: &TopicPartitionList,
    timeout: Duration,
) -> Result<(), AdminError> {
    let invalid = |_| (RDKafkaErrorCode::InvalidGroupId, "the name contains a null byte".to_owned());
    let group = CString::new(group).map_err(invalid)?;
    let queue = Queue::new(client).ok_or((RDKafkaErrorCode::Fail, "no memory".to_owned()))?;
    // SAFETY: all arguments are alive during the calls, which copy them; each object that a call creates is destroyed once, and the
    // event is destroyed after the last use of what it contains.
    unsafe {
        let rk = client_ptr(client);
        let mut request = sys::rd_kafka_AlterConsumerGroupOffsets_new(group.as_ptr(), offsets.ptr());
        let operation = sys::rd_kafka_admin_op_t::RD_KAFKA_ADMIN_OP_ALTERCONSUMERGROUPOFFSETS;
        let options = admin_options(rk, operation, timeout);
        sys::rd_kafka_AlterConsumerGroupOffsets(rk, &mut request, 1, options, queue.as_ptr());
        sys::rd_kafka_AlterConsumerGroupOffsets_destroy(request);
        sys::rd_kafka_AdminOptions_destroy(options);
        let event = wait_for_result(&queue, timeout, &|| false)?;
        let result = read_commit(event);
        sys::rd_kafka_event_destroy(event);
        result
    }
}

/// Reads the result of a commit of offsets.
///
/// # Safety
/// `event` is an event of a queue, which is alive during the call.
unsafe fn read_commit(event: *mut sys::rd_kafka_event_t) -> Result<(), AdminError> {
    // SAFETY: the event is alive, and so is everything that it contains.
    unsafe {
        let result = sys::rd_kafka_event_AlterConsumerGroupOffsets_result(event);
        let mut count = 0;
        let groups = if result.is_null() {
            std::ptr::null_mut()
        } else {
            sys::rd_kafka_AlterConsumerGroupOffsets_result_groups(result, &mut count)
        };
        if groups.is_null() || count == 0 {
            return Err((RDKafkaErrorCode::Fail, "the cluster returned no result".to_owned()));
        }
        let group = *groups;
        let error = sys::rd_kafka_group_result_error(group);
        if !error.is_null() {
            let code = RDKafkaErrorCode::from(sys::rd_kafka_error_code(error));
            return Err((code, text(sys::rd_kafka_error_string(error))));
        }
        let partitions = sys::rd_kafka_group_result_partitions(group);
        if partitions.is_null() {
            return Ok(());
        }
        let list = &*partitions;
        for index in 0..usize::try_from(list.cnt).unwrap_or(0) {
            let code = RDKafkaErrorCode::from((*list.elems.add(index)).err);
            if code != RDKafkaErrorCode::NoError {
                return Err((code, code.to_string()));
            }
        }
        Ok(())
    }
}

/// Creates the options of a request with a time limit. The caller destroys them.
///
/// # Safety
/// `rk` is the client, which is alive during the call.
unsafe fn admin_options(
    rk: *mut sys::rd_kafka_t,
    operation: sys::rd_kafka_admin_op_t,
    timeout: Duration,
) -> *mut sys::rd_kafka_AdminOptions_t {
    let mut error = [0; 128];
    // SAFETY: the client is alive, the options were just created, and the text has room for its length.
    unsafe {
        let options = sys::rd_kafka_AdminOptions_new(rk, operation);
        let limit = milliseconds(timeout);
        sys::rd_kafka_AdminOptions_set_request_timeout(options, limit, error.as_mut_ptr(), error.len());
        options
    }
}

/// Waits for the result of a request. Returns the event, which the caller destroys, or the error of the whole request.
fn wait_for_result(
    queue: &Queue,
    timeout: Duration,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<*mut sys::rd_kafka_event_t, AdminError> {
    let deadline = Instant::now() + timeout + Duration::from_secs(1);
    // SAFETY: the queue is alive. The event is destroyed here only if it is not returned.
    unsafe {
        let mut event: *mut sys::rd_kafka_event_t = std::ptr::null_mut();
        while event.is_null() {
            if Instant::now() >= deadline || is_cancelled() {
                return Err((RDKafkaErrorCode::OperationTimedOut, "the cluster did not answer".to_owned()));
            }
            event = sys::rd_kafka_queue_poll(queue.as_ptr(), milliseconds(WAIT_SLICE));
        }
        let code = RDKafkaErrorCode::from(sys::rd_kafka_event_error(event));
        if code == RDKafkaErrorCode::NoError {
            return Ok(event);
        }
        let error = (code, text(sys::rd_kafka_event_error_string(event)));
        sys::rd_kafka_event_destroy(event);
        Err(error)
    }
}
