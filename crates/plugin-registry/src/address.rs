//! Which addresses may be dialled.
//!
//! A registry, or a file that names one, is not to make this machine call services that trust it: the metadata services of
//! clouds and everything link-local are never dialled. A public registry cannot lead to private addresses either, by
//! redirect or token realm. Checks are made on the addresses that are dialled, after names were resolved, so a name that
//! changes its address between check and use gains nothing.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// What kind of network an address is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Zone {
    /// Link-local, metadata services, multicast, unspecified: never dialled.
    Forbidden,
    /// Loopback, private networks, shared address space, unique local addresses.
    Private,
    /// Everything else.
    Public,
}

/// Metadata services of clouds outside of the link-local range.
const METADATA_V4: [Ipv4Addr; 3] = [
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(192, 0, 0, 192),
];
const METADATA_V6: [Ipv6Addr; 2] = [
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
];

impl Zone {
    /// The zone of an address.
    pub(crate) fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::of_v4(address),
            IpAddr::V6(address) => match embedded_v4(address) {
                Some(inner) => Self::of_v4(inner),
                None => Self::of_v6(address),
            },
        }
    }

    fn of_v4(address: Ipv4Addr) -> Self {
        let [first, second, ..] = address.octets();
        if address.is_link_local()
            || address.is_multicast()
            || address.is_broadcast()
            || first == 0
            || first >= 240
            || METADATA_V4.contains(&address)
        {
            Self::Forbidden
        } else if address.is_loopback()
            || address.is_private()
            || (first == 100 && (64..128).contains(&second))
        {
            Self::Private
        } else {
            Self::Public
        }
    }

    fn of_v6(address: Ipv6Addr) -> Self {
        let first = address.segments().first().copied().unwrap_or(0);
        if address.is_unspecified()
            || address.is_multicast()
            || first & 0xffc0 == 0xfe80
            || METADATA_V6.contains(&address)
        {
            Self::Forbidden
        } else if address.is_loopback() || first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfec0 {
            Self::Private
        } else {
            Self::Public
        }
    }
}

/// The address of IPv4 to which a translator sends packets for this one.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let from = |high: u16, low: u16| {
        let number = u32::from(high) << 16 | u32::from(low);
        Ipv4Addr::from(number)
    };
    match address.segments() {
        // Compatible; `::` and `::1` are no addresses of IPv4.
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => Some(from(high, low)),
        // Mapped, NAT64, 6to4.
        [0, 0, 0, 0, 0, 0xffff, high, low]
        | [0x64, 0xff9b, 0 | 1, _, _, _, high, low]
        | [0x2002, high, low, ..] => Some(from(high, low)),
        _ => None,
    }
}

/// The zone of hosts that were dialled, by name.
#[derive(Debug, Clone, Default)]
pub(crate) struct SeenZones(Arc<Mutex<BTreeMap<String, Zone>>>);

impl SeenZones {
    /// The zone in which a host was dialled; `Public` if it never was.
    pub(crate) fn of(&self, host: &str) -> Zone {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.get(host).copied().unwrap_or(Zone::Public)
    }

    fn note(&self, host: &str, zone: Zone) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.insert(host.to_owned(), zone);
    }
}

/// Resolves names, and withholds addresses that may not be dialled.
#[derive(Debug)]
pub(crate) struct GuardedResolver {
    pub(crate) only_public: bool,
    pub(crate) seen: SeenZones,
}

/// How the refusal of an address begins; the HTTP client hands it on as the text of an error.
pub(crate) const REFUSED: &str = "may not be dialled";

impl Resolver for GuardedResolver {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = DefaultResolver::default().resolve(uri, config, timeout)?;
        // A proxy is the administrator's, and resolves by itself.
        if config.proxy().is_some_and(|proxy| !proxy.is_no_proxy(uri)) {
            return Ok(found);
        }
        let host = uri.host().unwrap_or_default();
        let (zone, dialled) = dialled(&found, self.only_public).map_err(|address| {
            let why = if Zone::of(address) == Zone::Forbidden {
                "link-local addresses and metadata services never are"
            } else {
                "it is private, and was named by a public server"
            };
            std::io::Error::other(format!("{address} {REFUSED}: {why}"))
        })?;
        self.seen.note(host, zone);
        let mut result = self.empty();
        for address in dialled {
            result.push(address);
        }
        if result.is_empty() {
            return Err(ureq::Error::HostNotFound);
        }
        Ok(result)
    }
}

/// Returns the addresses that may be dialled, and their zone. If some are public, only those are: a name with addresses on
/// both sides would make a server count as private and lead to a public one.
///
/// # Errors
/// An address for which nothing is left to dial.
fn dialled(found: &[SocketAddr], only_public: bool) -> Result<(Zone, Vec<SocketAddr>), IpAddr> {
    let in_zone = |zone: Zone| -> Vec<SocketAddr> {
        let inside = found
            .iter()
            .filter(|address| Zone::of(address.ip()) == zone);
        inside.copied().collect()
    };
    let public = in_zone(Zone::Public);
    if !public.is_empty() {
        return Ok((Zone::Public, public));
    }
    let private = in_zone(Zone::Private);
    if !private.is_empty() && !only_public {
        return Ok((Zone::Private, private));
    }
    match private.first().or_else(|| found.first()) {
        Some(refused) => Err(refused.ip()),
        None => Ok((Zone::Public, Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_of_addresses() {
        let zone = |text: &str| Zone::of(text.parse().unwrap());
        for forbidden in [
            "169.254.169.254",
            "169.254.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "fe80::1",
            "febf::1",
            "ff02::1",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "::a9fe:a9fe",
        ] {
            assert_eq!(zone(forbidden), Zone::Forbidden, "{forbidden}");
        }
        for private in [
            "127.0.0.1",
            "127.9.9.9",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "::1",
            "fc00::1",
            "fdff::1",
            "fec0::1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
        ] {
            assert_eq!(zone(private), Zone::Private, "{private}");
        }
        for public in [
            "1.1.1.1",
            "172.32.0.1",
            "100.128.0.1",
            "2606:4700::1",
            "::ffff:8.8.8.8",
        ] {
            assert_eq!(zone(public), Zone::Public, "{public}");
        }
    }

    #[test]
    fn public_addresses_of_a_mixed_name_are_the_only_ones_dialled() {
        let address = |text: &str| SocketAddr::new(text.parse().unwrap(), 443);
        let (private, public, link) = (
            address("10.0.0.1"),
            address("1.1.1.1"),
            address("169.254.169.254"),
        );
        assert_eq!(
            dialled(&[private, public, link], false),
            Ok((Zone::Public, vec![public]))
        );
        assert_eq!(
            dialled(&[private, link], false),
            Ok((Zone::Private, vec![private]))
        );
        assert_eq!(dialled(&[private], true), Err(private.ip()));
        assert_eq!(dialled(&[link], false), Err(link.ip()));
    }
}
