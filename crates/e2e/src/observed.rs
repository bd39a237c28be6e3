//! What an exchange led to, as lines that can be compared: a response, what reached an upstream, what a callout sent.
//! What differs from one run to the next by nature is left out.

use outrider_lab::client::{ClientError, Response};
use outrider_lab::echo::RecordedRequest;
use outrider_plugin_replay::Received;

/// Headers that differ from one exchange to the next.
const BY_NATURE: [&str; 4] = [
    "date",
    "x-envoy-upstream-service-time",
    "x-request-id",
    "connection",
];

/// Headers or trailers, by name; the values of one name in their order.
fn fields<'a>(headers: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut lines: Vec<String> = headers
        .filter(|(name, _)| !BY_NATURE.contains(name))
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    // The order of different names is no filter's to say; that of the values of one is kept.
    lines.sort_by(|one, other| one.split(':').next().cmp(&other.split(':').next()));
    lines
}

fn beginning(body: &[u8]) -> String {
    // The echo's description of a request has the order and the ports of this very connection.
    let text = String::from_utf8_lossy(body);
    if text.starts_with('{') {
        return "a description".to_owned();
    }
    text.chars().take(60).flat_map(char::escape_debug).collect()
}

/// A response: status, headers, the beginning of its body, trailers.
pub fn response_lines(response: &Result<Response, ClientError>) -> Vec<String> {
    let Ok(response) = response else {
        return vec!["no response".to_owned()];
    };
    let mut lines = vec![format!("status {}", response.status)];
    lines.extend(fields(response.headers.iter()));
    lines.push(format!(
        "body of {} bytes: {}",
        response.body.len(),
        beginning(&response.body)
    ));
    let trailers = fields(response.trailers.iter());
    lines.extend(trailers.into_iter().map(|line| format!("trailer {line}")));
    lines
}

/// A request that reached the echo service.
pub fn request_lines(request: &RecordedRequest) -> Vec<String> {
    let mut lines = vec![format!(
        "{} {} {:?}",
        request.method, request.path, request.protocol
    )];
    lines.extend(fields(request.headers.iter()));
    lines.push(format!(
        "body of {} bytes, {}",
        request.body.length, request.body.sha256
    ));
    lines.extend(
        fields(request.trailers.iter())
            .into_iter()
            .map(|line| format!("trailer {line}")),
    );
    lines
}

/// A request that reached the upstream of callouts.
pub fn call_lines(call: &Received) -> Vec<String> {
    let mut lines = vec![format!("{} {} to {}", call.method, call.path, call.host)];
    let headers = call.headers.iter();
    lines.extend(fields(
        headers.map(|(name, value)| (name.as_str(), value.as_str())),
    ));
    lines.push(format!("body {}", String::from_utf8_lossy(&call.body)));
    lines
}
