//! The counters over HTTP, for Prometheus: `GET /metrics`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::Service;
use crate::error::{Error, Result};
use crate::telemetry::{MetricsStream, render};

/// Longest request that is read; a scraper's has a few hundred bytes.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// A peer that is slower than this is dropped.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).await.map_err(|source| {
        Error::config(format!("cannot serve metrics at {address}: {source}; choose another address for --metrics"))
    })
}

/// Answers for ever, one request a connection.
pub(super) async fn serve(listener: TcpListener, service: Arc<Service>) {
    loop {
        match listener.accept().await {
            Ok((peer, _)) => {
                let service = service.clone();
                tokio::spawn(async move {
                    // A scraper that goes away is its own affair.
                    let _ = tokio::time::timeout(REQUEST_TIMEOUT, answer(peer, &service)).await;
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept a metrics request: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(mut peer: TcpStream, service: &Service) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        if request.len() > REQUEST_BYTES_MAX || peer.read_buf(&mut request).await? == 0 {
            return Ok(());
        }
    }
    let (status, body) = if request.starts_with(b"GET /metrics ") {
        ("200 OK", render_service(service))
    } else {
        ("404 Not Found", "metrics are at /metrics\n".to_owned())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    peer.write_all(head.as_bytes()).await?;
    peer.write_all(body.as_bytes()).await?;
    peer.shutdown().await
}

fn render_service(service: &Service) -> String {
    let stages = service.pipeline.stages();
    let streams: Vec<_> = service
        .streams
        .streams()
        .iter()
        .map(|stream| MetricsStream {
            job: stream.spec().name.clone(),
            rank: stream.spec().rank,
            figures: stream.figures(stages),
        })
        .collect();
    render(&stages.figures(), &streams)
}
