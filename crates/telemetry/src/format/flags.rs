//! Names of Envoy's response flags by their bits: short, and long.

/// Short and long names, from bit 0.
const NAMES: [(&str, &str); 30] = [
    ("LH", "FailedLocalHealthCheck"),
    ("UH", "NoHealthyUpstream"),
    ("UT", "UpstreamRequestTimeout"),
    ("LR", "LocalReset"),
    ("UR", "UpstreamRemoteReset"),
    ("UF", "UpstreamConnectionFailure"),
    ("UC", "UpstreamConnectionTermination"),
    ("UO", "UpstreamOverflow"),
    ("NR", "NoRouteFound"),
    ("DI", "DelayInjected"),
    ("FI", "FaultInjected"),
    ("RL", "RateLimited"),
    ("UAEX", "UnauthorizedExternalService"),
    ("RLSE", "RateLimitServiceError"),
    ("DC", "DownstreamConnectionTermination"),
    ("URX", "UpstreamRetryLimitExceeded"),
    ("SI", "StreamIdleTimeout"),
    ("IH", "InvalidEnvoyRequestHeaders"),
    ("DPE", "DownstreamProtocolError"),
    ("UMSDR", "UpstreamMaxStreamDurationReached"),
    ("RFCF", "ResponseFromCacheFilter"),
    ("NFCF", "NoFilterConfigFound"),
    ("DT", "DurationTimeout"),
    ("UPE", "UpstreamProtocolError"),
    ("NC", "NoClusterFound"),
    ("OM", "OverloadManagerTerminated"),
    ("DF", "DnsResolutionFailed"),
    ("DO", "DropOverload"),
    ("DR", "DownstreamRemoteReset"),
    ("UDO", "UnconditionalDropOverload"),
];

/// Appends the names of the bits that are set, with commas; `-` if none is.
pub(crate) fn write(into: &mut Vec<u8>, bits: i64, long: bool) {
    let mut first = true;
    for (bit, (short, name)) in NAMES.iter().enumerate() {
        if bits >> bit & 1 == 1 {
            if !first {
                into.push(b',');
            }
            first = false;
            into.extend_from_slice(if long { name } else { short }.as_bytes());
        }
    }
    if first {
        into.push(b'-');
    }
}

#[cfg(test)]
mod tests {
    use super::write;

    #[test]
    fn flags_are_named_in_the_order_of_their_bits() {
        let names = |bits, long| {
            let mut into = Vec::new();
            write(&mut into, bits, long);
            String::from_utf8(into).unwrap()
        };
        assert_eq!(names(0, false), "-");
        assert_eq!(names(1 << 8, false), "NR");
        assert_eq!(names(1 << 5 | 1 << 15, false), "UF,URX");
        assert_eq!(names(1 << 29, true), "UnconditionalDropOverload");
    }
}
