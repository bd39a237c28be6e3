//! The numbers of the Proxy-Wasm ABI, as hosts and guests exchange them.
//!
//! The trap: SDKs know few statuses for each function, and Rust's ends the guest on any other. Which
//! function answers what is decided where the function is; here is only what the numbers mean.

use outrider_plugin_api::{Direction, HeaderMap};

/// What a host function answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Status {
    Ok = 0,
    NotFound = 1,
    BadArgument = 2,
    SerializationFailure = 3,
    ParseFailure = 4,
    InvalidMemoryAccess = 6,
    Empty = 7,
    CasMismatch = 8,
    InternalFailure = 10,
    Unimplemented = 12,
}

/// Versions of the ABI, by the marker that a guest exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    V0_1_0,
    V0_2_0,
    V0_2_1,
}

impl Version {
    pub(crate) const ALL: [Self; 3] = [Self::V0_1_0, Self::V0_2_0, Self::V0_2_1];

    /// The export that says so.
    pub(crate) fn marker(self) -> &'static str {
        match self {
            Self::V0_1_0 => "proxy_abi_version_0_1_0",
            Self::V0_2_0 => "proxy_abi_version_0_2_0",
            Self::V0_2_1 => "proxy_abi_version_0_2_1",
        }
    }
}

/// What `proxy_on_*_headers`, `_body` and `_trailers` answer.
pub(crate) mod action {
    pub(crate) const CONTINUE: i32 = 0;
    pub(crate) const STOP_ITERATION: i32 = 1;
    /// Of headers: go on, and end the stream with them.
    pub(crate) const CONTINUE_AND_END_STREAM: i32 = 2;
    /// Of bodies: hold back what was given, with back-pressure.
    pub(crate) const STOP_ITERATION_AND_WATERMARK: i32 = 2;
}

/// Which buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Buffer {
    Body(Direction),
    CalloutBody,
    GrpcMessage,
    VmConfiguration,
    PluginConfiguration,
    ForeignArguments,
    /// Downstream or upstream data: network filters'.
    Network,
}

impl Buffer {
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        Some(match number {
            0 => Self::Body(Direction::Request),
            1 => Self::Body(Direction::Response),
            2 | 3 => Self::Network,
            4 => Self::CalloutBody,
            5 => Self::GrpcMessage,
            6 => Self::VmConfiguration,
            7 => Self::PluginConfiguration,
            8 => Self::ForeignArguments,
            _ => return None,
        })
    }
}

/// Which map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Map {
    Stream(HeaderMap),
    GrpcInitialMetadata,
    GrpcTrailingMetadata,
    CalloutHeaders,
    CalloutTrailers,
}

impl Map {
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        Some(match number {
            0 => Self::Stream(HeaderMap::RequestHeaders),
            1 => Self::Stream(HeaderMap::RequestTrailers),
            2 => Self::Stream(HeaderMap::ResponseHeaders),
            3 => Self::Stream(HeaderMap::ResponseTrailers),
            4 => Self::GrpcInitialMetadata,
            5 => Self::GrpcTrailingMetadata,
            6 => Self::CalloutHeaders,
            7 => Self::CalloutTrailers,
            _ => return None,
        })
    }
}

/// What stands for "no gRPC status" in a local response.
pub(crate) const NO_GRPC_STATUS: u32 = u32::MAX;
