//! Hosts and addresses of cloud metadata services, which return credentials and user data of the machine.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::kafka::kafka_servers;

/// Host names of metadata services. Other names resolve to one of the known addresses.
const METADATA_HOST_NAMES: [&str; 5] =
    ["metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal"];
/// Metadata addresses of Alibaba Cloud, of Azure's wire server, and of Oracle's former service.
const METADATA_ADDRESSES: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];
/// Metadata address of Google Cloud, `fd20:ce::254`.
const GOOGLE_METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254);

/// Whether an address is link-local, like most metadata services, or a known address of a metadata service. Also detects
/// IPv4 addresses embedded in IPv6 addresses.
pub fn is_metadata_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_metadata_v4(address),
        IpAddr::V6(address) => is_metadata_v6(address),
    }
}

fn is_metadata_v4(address: Ipv4Addr) -> bool {
    address.is_link_local() || METADATA_ADDRESSES.contains(&address)
}

fn is_metadata_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    let is_of_a_cloud = match parts {
        // AWS: ::254 serves instance metadata, ::23 serves pod credentials.
        [0xfd00, 0xec2, ..] => true,
        // Scaleway.
        [0xfd00, 0x42, 0, 0, ..] => true,
        _ => address == GOOGLE_METADATA_V6,
    };
    let is_link_local = parts[0] & 0xffc0 == 0xfe80;
    is_of_a_cloud || is_link_local || embedded_v4(parts).is_some_and(is_metadata_v4)
}

/// Returns the IPv4 address embedded in an IPv6 address: mapped or compatible (RFC 4291), translated (RFC 2765), NAT64
/// (RFC 6052 and RFC 8215), or 6to4 (RFC 3056).
fn embedded_v4(parts: [u16; 8]) -> Option<Ipv4Addr> {
    let of = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match parts {
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] | [0, 0, 0, 0, 0xffff, 0, high, low] => Some(of(high, low)),
        [0x64, 0xff9b, _, _, _, _, high, low] | [0x2002, high, low, ..] => Some(of(high, low)),
        _ => None,
    }
}

/// Returns the host of an HTTP or Kafka URL if the host is a metadata service, by name or by address in any textual form.
pub fn metadata_host(url: &str) -> Option<&str> {
    if let Some(servers) = kafka_servers(url) {
        return servers.map(host_of).find(|host| is_metadata_name(host));
    }
    let (scheme, rest) = url.split_once("://")?;
    if !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https") {
        return None;
    }
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = host_of(authority.rsplit('@').next().unwrap_or_default());
    is_metadata_name(host).then_some(host)
}

/// Returns the host of `host:port`. An IPv6 address is in brackets.
fn host_of(server: &str) -> &str {
    match server.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
        Some((inner, _)) => inner,
        None => server.split(':').next().unwrap_or_default(),
    }
}

fn is_metadata_name(host: &str) -> bool {
    // The zone after `%` names the network interface of a link-local address.
    let host = host.split('%').next().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
    if let Ok(address) = host.parse::<Ipv6Addr>() {
        return is_metadata_v6(address);
    }
    parse_loose_v4(&host).map_or_else(|| METADATA_HOST_NAMES.contains(&host.as_str()), is_metadata_v4)
}

/// Parses an IPv4 address like C's `inet_aton`: one to four numbers, each decimal, octal (prefix `0`) or hexadecimal (prefix
/// `0x`). The last number fills the remaining bytes.
fn parse_loose_v4(host: &str) -> Option<Ipv4Addr> {
    let parts: Vec<u64> = host.split('.').map(parse_loose_number).collect::<Option<_>>()?;
    let (last, first) = parts.split_last()?;
    if first.len() > 3 || first.iter().any(|part| *part > 255) || *last >= 1 << (8 * (4 - first.len())) {
        return None;
    }
    let high = first.iter().enumerate().map(|(index, part)| part << (24 - 8 * index)).sum::<u64>();
    u32::try_from(high + last).ok().map(Ipv4Addr::from)
}

fn parse_loose_number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    if digits.is_empty() {
        return (radix == 16).then_some(0);
    }
    // `from_str_radix` would accept a sign.
    let is_number = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_number.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_metadata_address_is_recognized() {
        for host in [
            "169.254.169.254",
            "169.254.169.254.",
            "169.254.170.2",
            "2852039166",
            "0xa9fea9fe",
            "0XA9.0xfe.0xa9.0xfe",
            "025177524776",
            "0251.0376.0251.0376",
            "169.254.43518",
            "169.16689662",
            "[::ffff:169.254.169.254]",
            "[::ffff:a9fe:a9fe]",
            "[::169.254.169.254]",
            "[64:ff9b::a9fe:a9fe]",
            "[2002:a9fe:a9fe::1]",
            "[fe80::1]",
            "[FE80::1%25eth0]",
            "[febf::1]",
            "[fd00:ec2::254]",
            "[fd00:ec2::23]",
            "[fd00:0ec2:ffff::1]",
            "[fd00:42::42]",
            "[fd00:42:0:0:ffff::1]",
            "[::ffff:0:169.254.169.254]",
            "[::ffff:100.100.100.200]",
            "[64:ff9b:1::169.254.169.254]",
            "[fd20:ce::254]",
            "100.100.100.200",
            "168.63.129.16",
            "metadata.google.internal",
            "Metadata.Google.Internal.",
            "metadata",
        ] {
            for url in
                [format!("http://{host}/latest/"), format!("HTTPS://{host}:80?x"), format!("http://u@{host}")]
            {
                assert!(metadata_host(&url).is_some(), "{url}");
            }
        }
    }

    #[test]
    fn other_hosts_are_not_metadata_services() {
        for url in [
            "http://169.253.169.254/",
            "http://127.0.0.1:9000/x",
            "http://10.0.0.1/169.254.169.254",
            "http://metadata.example.org/",
            "http://169.254.169.254.example.org/",
            "http://2852039166.example.org/",
            "https://[fec0::1]/",
            "https://[fd00:ec3::254]/",
            "https://[fd00:42:1::42]/",
            "https://[64:ff9b::10.0.0.1]/",
            "https://[::1]/",
            "https://[2001:db8::a9fe:a9fe]/",
            "s3://169.254.169.254/x",
            "/169.254.169.254",
            "http:///x",
            "http://1.2.3.4.5/",
            "http://256.1.1.1/",
            "http://0x/",
            "http://+1.2.3.4/",
        ] {
            assert_eq!(metadata_host(url), None, "{url}");
        }
    }
}
