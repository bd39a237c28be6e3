//! `outrider explain`: what one request would meet.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use outrider_gateway::{Request, explain};
use serde_json::json;

use crate::exit::{self, Exit};
use crate::fetching::FetchArguments;
use crate::loader::compile_file;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  outrider explain gateway.yaml https://shop.example.com/cart
  outrider explain gateway.yaml --host shop.example.com --path /cart
  outrider explain gateway.yaml --host shop.example.com --path '/cart?debug=1' --method POST \\
      --header 'x-version: v2' --header 'cookie: tier=gold'
  outrider explain gateway.yaml --host shop.example.com --path / --json | jq .chain[].plugin";

/// Say which project and route a request meets, its chain of plugins, and each one's configuration
///
/// Each value of a configuration is told with the scope, file and line that it came from. No request
/// is sent: what is explained is the file as it is now, which is served once it is applied. A request
/// that Envoy answers with 404 is explained, too, and ends with 0.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Arguments {
    /// The gateway's file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The request's URL, in place of --host, --path and --tls
    #[arg(value_name = "URL", value_parser = url, conflicts_with_all = ["host", "path", "tls"])]
    url: Option<Url>,
    /// The request's host
    #[arg(long, value_name = "HOST", required_unless_present = "url")]
    host: Option<String>,
    /// Its path, with the query
    #[arg(long, value_name = "PATH", value_parser = path, required_unless_present = "url")]
    path: Option<String>,
    /// It comes over TLS
    #[arg(long)]
    tls: bool,
    /// The address that it comes from
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    client: IpAddr,
    /// Its method
    #[arg(long, value_name = "METHOD", default_value = "GET")]
    method: String,
    /// One of its headers; may be repeated
    #[arg(long, value_name = "NAME:VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    fetch: FetchArguments,
}

/// The parts of a URL that count.
#[derive(Debug, Clone)]
struct Url {
    is_tls: bool,
    host: String,
    path: String,
}

fn url(text: &str) -> Result<Url, String> {
    const FORM: &str = "a URL is written as https://shop.example.com/cart";
    // Paths are looked at as clients send them, so the URL is not taken apart by a library, which would change them.
    let (is_tls, rest) = match text.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        _ => return Err(FORM.to_owned()),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at_checked(end).ok_or(FORM)?;
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if host.is_empty() {
        return Err(FORM.to_owned());
    }
    let path = path.split('#').next().unwrap_or_default();
    Ok(Url {
        is_tls,
        host: host.to_owned(),
        path: if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        },
    })
}

fn path(text: &str) -> Result<String, String> {
    if text.starts_with('/') {
        Ok(text.to_owned())
    } else {
        Err("a path begins with a slash".to_owned())
    }
}

fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("a header is written as name:value".to_owned()),
    }
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<Exit> {
    arguments.fetch.apply();
    let compiled = compile_file(&arguments.file);
    let Some(plan) = compiled.plan else {
        if arguments.json {
            output::json(&json!({ "ok": false, "problems": compiled.problems }));
        } else {
            output::problems(&compiled.problems);
        }
        return Ok(Exit::Problems);
    };
    let (host, path, tls) = match &arguments.url {
        Some(url) => (url.host.clone(), url.path.clone(), Some(url.is_tls)),
        None => (
            arguments.host.clone().unwrap_or_default(),
            arguments.path.clone().unwrap_or_default(),
            arguments.tls.then_some(true),
        ),
    };
    let explanation = explain(
        &plan,
        &Request {
            host,
            path,
            method: arguments.method.clone(),
            headers: arguments.header.clone(),
            tls,
            client: arguments.client,
        },
    );
    if arguments.json {
        output::json(&serde_json::to_value(&explanation)?);
    } else {
        output::line(explanation.to_string().trim_end());
    }
    Ok(Exit::Good)
}
