//! `outrider explain`: what one request would meet.

use std::path::PathBuf;

use clap::Args;
use outrider_gateway::{Request, explain};

use crate::exit::{self, Exit};
use crate::loader::compile_file;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  outrider explain gateway.yaml --host shop.example.com --path /cart
  outrider explain gateway.yaml --host shop.example.com --path '/cart?debug=1' --method POST \\
      --header 'x-version: v2' --header 'cookie: tier=gold'
  outrider explain gateway.yaml --host shop.example.com --path / --json | jq .chain[].plugin";

/// Say which project and route a request meets, its chain of plugins, and each one's configuration
///
/// Each value of a configuration is told with the scope, file and line that it came from. No request
/// is sent.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", exit::HELP))]
pub(crate) struct Arguments {
    /// The gateway's file
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The request's host
    #[arg(long, value_name = "HOST")]
    host: String,
    /// Its path, with the query
    #[arg(long, value_name = "PATH", value_parser = path)]
    path: String,
    /// Its method
    #[arg(long, value_name = "METHOD", default_value = "GET")]
    method: String,
    /// One of its headers; may be repeated
    #[arg(long, value_name = "NAME:VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Print JSON
    #[arg(long)]
    json: bool,
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
    let compiled = compile_file(&arguments.file);
    let Some(plan) = compiled.plan else {
        output::problems(&compiled.problems);
        return Ok(Exit::Problems);
    };
    let explanation = explain(
        &plan,
        &Request {
            host: arguments.host.clone(),
            path: arguments.path.clone(),
            method: arguments.method.clone(),
            headers: arguments.header.clone(),
        },
    );
    if arguments.json {
        output::json(&serde_json::to_value(&explanation)?);
    } else {
        output::line(explanation.to_string().trim_end());
    }
    Ok(Exit::Good)
}
