//! The half that takes packets.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver as Home, Sender, channel};
use std::time::Duration;

use portcullis_core::packet::{Arena, Batch, Descriptor, Metadata, ResizeRoom};
use portcullis_core::program::facts::Window;

use super::frames::{Frames, Layout, MessageLocation};
use super::memory;
use super::message::{self, Message, Packet};
use super::queue::{Queue, Row, open_table, read};
use super::socket::BURST;
use super::tickets::{State, Ticket, Tickets};
use super::{ETHERNET_HEADER, QueueOptions};
use crate::live::{LiveError, ReceivedCounts, Receiver, checksum, nanoseconds};

/// Takes the packets of a netfilter queue.
///
/// There is memory for a batch of as many packets as [`QueueOptions::batch`] says, and for 256 of more than about 1,700 bytes
/// among them. When it is used up, [`Receiver::receive`] takes nothing more and [`Receiver::wait`] does not wait, until the
/// batch is closed.
#[derive(Debug)]
pub struct QueueReceiver {
    gathering: Option<Gathering>,
    options: QueueOptions,
    layout: Layout,
    /// Arenas come back here when their batches are gone.
    home: Sender<Arena>,
    free: Home<Arena>,
    received: ReceivedCounts,
    table: Option<File>,
    /// What the kernel's counters had when they were read last.
    dropped: [u32; 2],
    queue: Arc<Queue>,
}

/// A batch that is not closed yet.
#[derive(Debug)]
struct Gathering {
    frames: Frames,
    tickets: Tickets,
    descriptors: Vec<Descriptor>,
    metadata: Vec<Metadata>,
}

impl QueueReceiver {
    pub(super) fn new(queue: Arc<Queue>, options: QueueOptions, layout: Layout, first: Arena) -> QueueReceiver {
        let (home, free) = channel();
        home.send(first).expect("the other end is here");
        QueueReceiver {
            gathering: None,
            options,
            layout,
            home,
            free,
            received: ReceivedCounts::default(),
            table: open_table().ok(),
            dropped: [0; 2],
            queue,
        }
    }

    fn gathering(&mut self) -> Result<&mut Gathering, LiveError> {
        if self.gathering.is_none() {
            let arena = match self.free.try_recv() {
                Ok(arena) => arena,
                Err(_) => memory::arena(self.layout.arena())?,
            };
            // As many as are usual: a batch that is full is taken for granted where there is much traffic.
            let expected = self.options.batch;
            self.gathering = Some(Gathering {
                frames: Frames::new(self.layout, arena),
                tickets: Tickets::new(self.queue.clone(), self.home.clone(), expected),
                descriptors: Vec::with_capacity(expected),
                metadata: Vec::with_capacity(if self.options.metadata { expected } else { 0 }),
            });
        }
        Ok(self.gathering.as_mut().expect("made above"))
    }

    /// Takes what one call gives. Gives how many messages came, and how many packets were in them.
    fn burst(&mut self, most: usize) -> Result<(usize, usize), LiveError> {
        let (queue, options) = (self.queue.clone(), self.options);
        let gathering = self.gathering()?;
        if gathering.descriptors.is_empty() {
            // Messages other than packets took room.
            gathering.frames.reset();
        }
        let messages = loop {
            match gathering.frames.receive(queue.socket(), most) {
                Ok(messages) => break messages,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break 0,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Packets were lost, which the kernel counts. The next ones are there.
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) => return Err(queue.error("taking packets", error)),
            }
        };
        if messages == 0 {
            return Ok((0, 0));
        }
        let now = if options.metadata { nanoseconds() } else { 0 };
        let before = gathering.descriptors.len();
        let received = &mut self.received;
        let gathering = self.gathering.as_mut().expect("made above");
        for index in 0..messages {
            let place = gathering.frames.place(index);
            let bytes = &gathering.frames.bytes()[place.start..place.start + place.length];
            match message::decode(bytes) {
                Ok(Message::Packet(packet)) if !place.is_cut => gathering.add(&packet, place, now, &options, received),
                Ok(Message::Packet(packet)) => refuse(&queue, received, Some(packet.id)),
                Ok(Message::Ack(answer)) => queue.answered(answer),
                Ok(Message::Other) => {}
                Err(malformed) => refuse(&queue, received, malformed.id),
            }
        }
        if let Some(last) = gathering.tickets.packets.last() {
            queue.took(last.id);
        }
        Ok((messages, gathering.descriptors.len() - before))
    }
}

impl Gathering {
    fn add(
        &mut self,
        packet: &Packet,
        location: MessageLocation,
        now: u64,
        options: &QueueOptions,
        received: &mut ReceivedCounts,
    ) {
        let arena = self.frames.bytes();
        let payload = location.start + packet.payload.start..location.start + packet.payload.end;
        let start = payload.start - ETHERNET_HEADER;
        let header = &mut arena[start..payload.start];
        header[..6].fill(0);
        header[6..12].copy_from_slice(&packet.sender.unwrap_or_default());
        header[12..].copy_from_slice(&packet.protocol.to_be_bytes());
        let mut state = match packet.length > payload.len() {
            true => State::Cut,
            false if packet.is_gso => State::Segments { here: packet.hook == Packet::LOCAL_IN },
            false => State::Whole,
        };
        if options.rewrites() {
            let bytes = &mut arena[payload.clone()];
            if packet.has_partial_checksum && state != State::Cut {
                match checksum::is_partial(bytes) {
                    true => received.checksums += u64::from(checksum::complete_packet(bytes)),
                    false => state = State::Unfinished,
                }
            }
            self.tickets.keep(bytes, options.writes);
        }
        let length = payload.len() + ETHERNET_HEADER;
        self.tickets.packets.push(Ticket {
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
        received.reassembled += u64::from(location.was_split);
    }
}

/// Counts a packet that cannot be filtered, and gives it its verdict where its number is known.
fn refuse(queue: &Queue, received: &mut ReceivedCounts, id: Option<u32>) {
    received.refused += 1;
    // Packets before it wait yet.
    queue.fall_back(id.into_iter(), false);
}

impl Receiver for QueueReceiver {
    fn receive(&mut self, most: usize) -> Result<usize, LiveError> {
        self.queue.check()?;
        let mut got = 0;
        while got < most {
            let wanted = (most - got).min(BURST);
            let (messages, packets) = self.burst(wanted)?;
            got += packets;
            if messages < wanted {
                break;
            }
        }
        Ok(got)
    }

    fn wait(&mut self, most: Duration) -> Result<(), LiveError> {
        self.queue.check()?;
        if self.is_full() {
            return Ok(());
        }
        let ready = self.queue.socket().wait(most);
        ready.map(|_| ()).map_err(|error| self.queue.error("waiting for packets", error))
    }

    fn backlog_capacity(&self) -> usize {
        // Where a batch's memory is used up, what comes has to wait until it is closed.
        if self.is_full() { 0 } else { self.options.max_length as usize }
    }

    fn is_full(&self) -> bool {
        self.gathering.as_ref().is_some_and(|gathering| gathering.frames.left() == 0)
    }

    fn take_batch(&mut self) -> Option<Batch> {
        if self.gathering.as_ref()?.descriptors.is_empty() {
            return None;
        }
        let Gathering { frames, mut tickets, descriptors, metadata } = self.gathering.take()?;
        let arena = frames.into_arena();
        let span = arena.span().clone();
        tickets.arena = Some(arena);
        let room = self.options.room;
        // SAFETY: each packet, and before and behind it its room where there is any, lies in a slot or an area of its own
        // (`frames`: the room before it begins at the slot's, or later), and those begin at multiples of 64 bytes. The
        // companion has the only handle on the memory, and makes no use of it while the batch has the companion.
        let batch = unsafe { Batch::from_frames(span, descriptors, metadata, room, Box::new(tickets)) };
        Some(batch.expect("packets lie in their arena, and have as many entries of metadata, or none"))
    }

    fn received(&mut self) -> ReceivedCounts {
        let table = self.table.as_ref().and_then(read);
        if let Some(row) = table.and_then(|table| Row::find(&table, self.queue.number())) {
            for (now, before) in row.dropped.into_iter().zip(&mut self.dropped) {
                self.received.dropped_by_kernel += u64::from(now.wrapping_sub(*before));
                *before = now;
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
