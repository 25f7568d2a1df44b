//! URLs of Kafka clusters, which may list several servers: `kafka://host1:9092,host2:9092`.

/// Whether a URL has the scheme of Kafka clusters.
pub fn is_kafka(url: &str) -> bool {
    url.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("kafka"))
}

/// Returns the servers of a Kafka URL, such as `host1:9092`; `None` for other URLs.
pub fn kafka_servers(url: &str) -> Option<impl Iterator<Item = &str>> {
    let (_, rest) = url.split_once("://").filter(|_| is_kafka(url))?;
    Some(rest.split(['/', '?', '#']).next().unwrap_or_default().split(','))
}

/// Returns one URL without a path for each server of a Kafka URL; `None` for other URLs.
pub(super) fn server_urls(url: &str) -> Option<Vec<String>> {
    Some(kafka_servers(url)?.map(|server| format!("kafka://{}", normal_server(server))).collect())
}

/// Returns a server in lower case and with a port.
pub(super) fn normal_server(server: &str) -> String {
    let has_port = server.rsplit(']').next().unwrap_or_default().contains(':');
    format!("{}{}", server.to_ascii_lowercase(), if has_port { "" } else { ":9092" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::urls::{UrlPolicy, check_no_secrets, metadata_host};

    #[test]
    fn servers_are_split() {
        let servers = |url| kafka_servers(url).map(|servers| servers.collect::<Vec<_>>());
        assert_eq!(servers("kafka://a:1,b"), Some(vec!["a:1", "b"]));
        assert_eq!(servers("KAFKA://a:1/topic/3"), Some(vec!["a:1"]));
        assert_eq!(servers("s3://a,b/c"), None);
        assert_eq!(
            server_urls("kafka://A,[::1]:7,[::1]").unwrap(),
            ["kafka://a:9092", "kafka://[::1]:7", "kafka://[::1]:9092"]
        );
    }

    #[test]
    fn a_policy_must_allow_each_server() {
        let policy = UrlPolicy::new(["kafka://a", "kafka://b:9093/"]).unwrap();
        for url in ["kafka://a:9092", "kafka://a", "kafka://B:9093,a", "kafka://a:9092/events/3"] {
            assert_eq!(policy.check(url), Ok(()), "{url}");
            assert_eq!(policy.check_object(url), Ok(()), "{url}");
        }
        for url in ["kafka://a:9093", "kafka://a,c", "kafka://", "kafka://a,", "s3://a:9092"] {
            assert!(policy.check(url).is_err() && policy.check_object(url).is_err(), "{url}");
        }
    }

    #[test]
    fn secrets_and_metadata_services_are_found_in_each_server() {
        assert_eq!(check_no_secrets("kafka://a:9092,b:9092/events/3"), Ok(()));
        assert!(check_no_secrets("kafka://a:9092,me:word@b:9092").is_err());
        assert_eq!(metadata_host("kafka://a:9092,169.254.169.254:80"), Some("169.254.169.254"));
        assert_eq!(metadata_host("kafka://a:9092"), None);
    }
}
