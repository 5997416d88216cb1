//! Receiving packets from a netfilter queue.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver as ArenaReturns, Sender, channel};
use std::time::Duration;

use portcullis_core::packet::{Arena, Batch, Descriptor, Metadata, ResizeRoom};
use portcullis_core::program::facts::Window;

use super::memory;
use super::message::{self, Message, Packet};
use super::message_buffer::{Layout, MessageBuffer, MessageLocation};
use super::pending::{PendingBatch, PendingPacket, Rewritability};
use super::queue::{Queue, Row, open_table, read};
use super::socket::BURST;
use super::{ETHERNET_HEADER, QueueOptions};
use crate::live::{LiveError, ReceivedCounts, Receiver, checksum, nanoseconds};

/// Receives the packets of a netfilter queue.
///
/// A batch has memory for [`QueueOptions::batch`] packets, of which 256 may exceed about 1,700
/// bytes. Once it is used up, [`Receiver::receive`] receives nothing and [`Receiver::wait`] does
/// not block, until the batch is taken.
#[derive(Debug)]
pub struct QueueReceiver {
    open_batch: Option<OpenBatch>,
    options: QueueOptions,
    layout: Layout,
    /// Returns the arenas of dropped batches.
    arena_returns: Sender<Arena>,
    free_arenas: ArenaReturns<Arena>,
    received: ReceivedCounts,
    table: Option<File>,
    /// The kernel's drop counters at the last reading.
    dropped: [u32; 2],
    queue: Arc<Queue>,
}

/// A batch under construction.
#[derive(Debug)]
struct OpenBatch {
    buffer: MessageBuffer,
    pending_batch: PendingBatch,
    descriptors: Vec<Descriptor>,
    metadata: Vec<Metadata>,
}

impl QueueReceiver {
    pub(super) fn new(queue: Arc<Queue>, options: QueueOptions, layout: Layout, first: Arena) -> QueueReceiver {
        let (arena_returns, free_arenas) = channel();
        arena_returns.send(first).expect("the other end is here");
        QueueReceiver {
            open_batch: None,
            options,
            layout,
            arena_returns,
            free_arenas,
            received: ReceivedCounts::default(),
            table: open_table().ok(),
            dropped: [0; 2],
            queue,
        }
    }

    fn open_batch(&mut self) -> Result<&mut OpenBatch, LiveError> {
        if self.open_batch.is_none() {
            let arena = match self.free_arenas.try_recv() {
                Ok(arena) => arena,
                Err(_) => memory::arena(self.layout.arena())?,
            };
            // Reserve for a full batch, the common case under load.
            let expected = self.options.batch;
            self.open_batch = Some(OpenBatch {
                buffer: MessageBuffer::new(self.layout, arena),
                pending_batch: PendingBatch::new(self.queue.clone(), self.arena_returns.clone(), expected),
                descriptors: Vec::with_capacity(expected),
                metadata: Vec::with_capacity(if self.options.metadata { expected } else { 0 }),
            });
        }
        Ok(self.open_batch.as_mut().expect("made above"))
    }

    /// Receives one burst; returns the numbers of messages and of packets among them.
    fn burst(&mut self, max: usize) -> Result<(usize, usize), LiveError> {
        let (queue, options) = (self.queue.clone(), self.options);
        let open_batch = self.open_batch()?;
        if open_batch.descriptors.is_empty() {
            // Discard slots taken by messages other than packets.
            open_batch.buffer.reset();
        }
        let messages = loop {
            match open_batch.buffer.receive(queue.socket(), max) {
                Ok(messages) => break messages,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break 0,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Packets were dropped, which the kernel counts; receive the following ones.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(queue.error("taking packets", error)),
            }
        };
        if messages == 0 {
            return Ok((0, 0));
        }
        let now = if options.metadata { nanoseconds() } else { 0 };
        let saved = open_batch.descriptors.len();
        let received = &mut self.received;
        let open_batch = self.open_batch.as_mut().expect("made above");
        for index in 0..messages {
            let place = open_batch.buffer.locate(index);
            let bytes = &open_batch.buffer.bytes()[place.start..place.start + place.length];
            match message::decode(bytes) {
                Ok(Message::Packet(packet)) if !place.is_truncated => {
                    open_batch.add(&packet, place, now, &options, received)
                }
                Ok(Message::Packet(packet)) => refuse(&queue, received, Some(packet.id)),
                Ok(Message::Ack(answer)) => queue.record_ack(answer),
                Ok(Message::Other) => {}
                Err(malformed) => refuse(&queue, received, malformed.id),
            }
        }
        if let Some(last) = open_batch.pending_batch.packets.last() {
            queue.set_last_id(last.id);
        }
        Ok((messages, open_batch.descriptors.len() - saved))
    }
}

impl OpenBatch {
    fn add(
        &mut self,
        packet: &Packet,
        location: MessageLocation,
        now: u64,
        options: &QueueOptions,
        received: &mut ReceivedCounts,
    ) {
        let arena = self.buffer.bytes();
        let payload = location.start + packet.payload.start..location.start + packet.payload.end;
        let start = payload.start - ETHERNET_HEADER;
        let header = &mut arena[start..payload.start];
        header[..6].fill(0);
        header[6..12].copy_from_slice(&packet.sender.unwrap_or_default());
        header[12..].copy_from_slice(&packet.protocol.to_be_bytes());
        let mut state = match packet.length > payload.len() {
            true => Rewritability::Truncated,
            false if packet.is_gso => Rewritability::Segmented { is_local: packet.hook == Packet::LOCAL_IN },
            false => Rewritability::Whole,
        };
        if options.rewrites() {
            let bytes = &mut arena[payload.clone()];
            if packet.has_partial_checksum && state != Rewritability::Truncated {
                match checksum::is_partial(bytes) {
                    true => received.checksums += u64::from(checksum::complete_packet(bytes)),
                    false => state = Rewritability::KernelChecksum,
                }
            }
            self.pending_batch.save(bytes, options.writes);
        }
        let length = payload.len() + ETHERNET_HEADER;
        self.pending_batch.packets.push(PendingPacket {
            id: packet.id,
            offset: payload.start as u32,
            length: payload.len() as u32,
            state,
        });
        self.descriptors.push(Descriptor { offset: start as u32, length: length as u32 });
        if options.metadata {
            let wire_length = u32::try_from(packet.length + ETHERNET_HEADER).unwrap_or(u32::MAX);
            self.metadata.push(Metadata::new(wire_length, options.port, packet.time_ns.unwrap_or(now)));
        }
        received.packets += 1;
        received.bytes += length as u64;
        received.reassembled += u64::from(location.was_joined);
    }
}

/// Counts a packet that cannot be filtered, and gives it the fallback verdict if its ID is known.
fn refuse(queue: &Queue, received: &mut ReceivedCounts, id: Option<u32>) {
    received.refused += 1;
    // Earlier packets are still waiting.
    queue.give_fallback_verdict(id.into_iter(), false);
}

impl Receiver for QueueReceiver {
    fn receive(&mut self, max: usize) -> Result<usize, LiveError> {
        self.queue.check()?;
        let mut got = 0;
        while got < max {
            let wanted = (max - got).min(BURST);
            let (messages, packets) = self.burst(wanted)?;
            got += packets;
            if messages < wanted {
                break;
            }
        }
        Ok(got)
    }

    fn wait(&mut self, max: Duration) -> Result<(), LiveError> {
        self.queue.check()?;
        if self.is_full() {
            return Ok(());
        }
        let ready = self.queue.socket().wait(max);
        ready.map(|_| ()).map_err(|error| self.queue.error("waiting for packets", error))
    }

    fn backlog_capacity(&self) -> usize {
        // Once the batch's memory is used up, packets have to wait until it is taken.
        if self.is_full() { 0 } else { self.options.max_length as usize }
    }

    fn is_full(&self) -> bool {
        self.open_batch.as_ref().is_some_and(|open_batch| open_batch.buffer.free_messages() == 0)
    }

    fn take_batch(&mut self) -> Option<Batch> {
        if self.open_batch.as_ref()?.descriptors.is_empty() {
            return None;
        }
        let OpenBatch { buffer, mut pending_batch, descriptors, metadata } = self.open_batch.take()?;
        let arena = buffer.into_arena();
        let span = arena.span().clone();
        pending_batch.arena = Some(arena);
        let room = self.options.room;
        // SAFETY: each packet with its room lies in a slot or overflow area of its own
        // (`message_buffer`: the room before it starts at the slot's start or later), and these
        // start at multiples of 64 bytes. The source data has the only handle on the memory and
        // does not use it while the batch owns it.
        let batch = unsafe { Batch::from_frames(span, descriptors, metadata, room, Box::new(pending_batch)) };
        Some(batch.expect("packets lie in their arena, and have as many entries of metadata, or none"))
    }

    fn received(&mut self) -> ReceivedCounts {
        let table = self.table.as_ref().and_then(read);
        if let Some(row) = table.and_then(|table| Row::find(&table, self.queue.number())) {
            for (now, saved) in row.dropped.into_iter().zip(&mut self.dropped) {
                self.received.dropped_by_kernel += u64::from(now.wrapping_sub(*saved));
                *saved = now;
            }
        }
        self.received
    }
}

impl QueueOptions {
    /// Whether the filter may change packets.
    pub(super) fn rewrites(&self) -> bool {
        self.writes != Window::Nothing || self.room == ResizeRoom::Both
    }
}
