//! Execution of statements and calls. The machine keeps its own stack, of call frames with a
//! control stack each, so that no nesting in a filter exhausts the host's stack.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::slice::Iter;

use naga::valid::FunctionInfo;
use naga::{AtomicFunction, Block, Expression, Function, Handle, Statement, SwitchCase, SwitchValue, TypeInner};

use super::expression::{Context, Types};
use super::map_requests::{AtomicOp, MapReply, MapRequest, Replies};
use super::memory::Memory;
use super::prepare::{Access, PreparedFunction, PreparedProgram};
use super::value::{Pointer, Scalar, Space, Value};
use super::{InterpError, Outcome, Trace};
use crate::device::CancelToken;
use crate::packet::{Metadata, Verdict};
use crate::program::Program;

/// Why a call stopped before its end.
#[derive(Debug)]
pub(super) enum Stop {
    /// The packet ran out of fuel and is aborted.
    OutOfFuel,
    /// The [`CancelToken`] was triggered.
    Cancelled,
    /// A map access has no reply yet.
    Blocked(MapRequest),
    /// See [`InterpError`].
    Error(InterpError),
}

impl Stop {
    /// Converts to an error, where stopping for any other reason is a bug.
    pub(super) fn into_error(self) -> InterpError {
        match self {
            Stop::Error(error) => error,
            Stop::OutOfFuel | Stop::Cancelled | Stop::Blocked(_) => InterpError::internal("stopped outside the filter"),
        }
    }
}

impl From<InterpError> for Stop {
    fn from(error: InterpError) -> Stop {
        Stop::Error(error)
    }
}

/// An unfinished construct on a function's control stack; entries above it are nested in it.
enum ControlFrame<'p> {
    /// The remaining statements of a block.
    Block(Iter<'p, Statement>),
    /// A switch; the remaining cases run only by fall-through.
    Switch { falls: bool, rest: Iter<'p, SwitchCase> },
    /// A loop.
    Loop { body: &'p Block, continuing: &'p Block, break_if: Option<Handle<Expression>>, next: LoopPhase },
}

/// Next step of a loop, once everything above it on the control stack is finished.
#[derive(Clone, Copy)]
enum LoopPhase {
    Body,
    Continuing,
    BreakIf,
}

/// A call frame.
struct Frame<'p> {
    function: &'p Function,
    info: &'p FunctionInfo,
    code: &'p PreparedFunction,
    /// Values computed so far, by expression handle.
    values: Vec<Option<Value>>,
    /// Index of the function's locals in [`Memory::slots`].
    base: usize,
    control: Vec<ControlFrame<'p>>,
    /// The caller's expression that receives the result.
    result: Option<Handle<Expression>>,
}

/// Runs packets through one program, one after another.
pub(super) struct Machine<'p> {
    program: &'p Program,
    code: &'p PreparedProgram,
    cancel: &'p CancelToken,
    pub(super) memory: Memory,
    /// Replies to map accesses, if the caller supplies them.
    pub(super) replies: Option<Replies>,
    frames: Vec<Frame<'p>>,
    /// Frames of finished calls, kept for their allocations.
    spare: Vec<Frame<'p>>,
    fuel: u32,
    pub(super) trace: Trace,
}

impl<'p> Machine<'p> {
    pub(super) fn new(
        program: &'p Program,
        code: &'p PreparedProgram,
        maps: Vec<Vec<u32>>,
        cancel: &'p CancelToken,
    ) -> Machine<'p> {
        Machine {
            program,
            code,
            cancel,
            memory: Memory::with_maps(maps),
            replies: None,
            frames: Vec::new(),
            spare: Vec::new(),
            fuel: 0,
            trace: Trace::default(),
        }
    }

    /// Runs one packet as a batch of its own, starting `misalignment` bytes past a word boundary.
    /// Returns the normalised return value; [`Memory::descriptor`] then locates the packet.
    pub(super) fn run_packet(&mut self, packet: &[u8], misalignment: usize, metadata: &Metadata) -> Result<u32, Stop> {
        self.memory.reset(packet, misalignment, metadata, &self.code.privates);
        self.fuel = self.program.fuel();
        self.trace = Trace::default();
        let index = || Value::Scalar(Scalar::U32(0));
        let internals = self.program.internals();
        self.call(internals.enter, vec![index()])?;
        let verdict = match self.call(self.program.filter(), vec![index()]) {
            Ok(value) => {
                let value = value.ok_or_else(|| InterpError::internal("the filter returned nothing"))?;
                let verdict = self.call(internals.verdict, vec![value])?;
                verdict.ok_or_else(|| InterpError::internal("the prelude returned no verdict"))?.scalar()?.as_u32()?
            }
            // Effects up to this point remain.
            Err(Stop::OutOfFuel) => {
                self.frames.clear();
                self.memory.slots.truncate(self.code.privates.len());
                0
            }
            Err(stop) => return Err(stop),
        };
        self.call(internals.leave, vec![index()])?;
        self.trace.iterations = u64::from(self.program.fuel() - self.fuel);
        Ok(verdict)
    }

    /// The outcome of the packet that has just run.
    pub(super) fn outcome(&self, verdict: Verdict) -> Outcome {
        let [offset, length] = self.memory.descriptor.map(|v| v as usize);
        let packet = (offset..offset + length).map(|at| self.memory.byte(at)).collect();
        Outcome { verdict, packet, trace: self.trace }
    }

    /// Takes the reply for a map word if the caller supplies replies; `None` for any other memory.
    fn request_map_word(
        &mut self,
        at: Handle<Expression>,
        pointer: Pointer,
        op: AtomicOp,
        uses_result: bool,
    ) -> Result<Option<MapReply>, Stop> {
        match (&mut self.replies, pointer) {
            (Some(replies), Pointer { space: Space::Map(map), slot }) => {
                let reply = replies.next(at.index());
                reply.map(Some).ok_or(Stop::Blocked(MapRequest { map, at: slot, op, uses_result }))
            }
            _ => Ok(None),
        }
    }

    /// The hash in [`Progress::Blocked`](super::map_requests::Progress::Blocked).
    pub(super) fn state(&self, request: MapRequest) -> u64 {
        let mut hasher = DefaultHasher::new();
        (request, self.replies.as_ref().map(|replies| replies.at), self.fuel).hash(&mut hasher);
        self.memory.hash(&mut hasher);
        for frame in &self.frames {
            (std::ptr::from_ref(frame.function), frame.base, frame.result).hash(&mut hasher);
            for work in &frame.control {
                match work {
                    ControlFrame::Block(rest) => (rest.as_slice().as_ptr(), rest.len()).hash(&mut hasher),
                    ControlFrame::Switch { falls, rest } => {
                        (falls, rest.as_slice().as_ptr(), rest.len()).hash(&mut hasher);
                    }
                    ControlFrame::Loop { body, next, .. } => (std::ptr::from_ref(*body), *next as u8).hash(&mut hasher),
                }
            }
            format!("{:?}", frame.values).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Calls a function and runs it until it returns.
    fn call(&mut self, function: Handle<Function>, arguments: Vec<Value>) -> Result<Option<Value>, Stop> {
        self.frames.clear();
        self.push_call(function, arguments, None)?;
        loop {
            if let Some(result) = self.step()? {
                return Ok(result);
            }
        }
    }

    fn push_call(
        &mut self,
        handle: Handle<Function>,
        arguments: Vec<Value>,
        result: Option<Handle<Expression>>,
    ) -> Result<(), InterpError> {
        let function = &self.program.module().functions[handle];
        let code = &self.code.functions[handle.index()];
        let base = self.memory.slots.len();
        self.memory.slots.extend_from_slice(&code.locals);
        let info = &self.program.info()[handle];
        let mut frame = self.spare.pop().unwrap_or_else(|| Frame {
            function,
            info,
            code,
            values: Vec::new(),
            base,
            control: Vec::new(),
            result,
        });
        (frame.function, frame.info, frame.code, frame.base, frame.result) = (function, info, code, base, result);
        frame.values.resize(function.expressions.len(), None);
        for &(expression, number) in &code.arguments {
            let argument = arguments.get(number).ok_or_else(|| InterpError::internal("an argument is missing"))?;
            frame.values[expression.index()] = Some(argument.clone());
        }
        for &(expression, slot) in &code.addresses {
            let pointer = Pointer { space: Space::Memory, slot: base + slot };
            frame.values[expression.index()] = Some(Value::Pointer(pointer));
        }
        frame.control.push(ControlFrame::Block(function.body.iter()));
        self.frames.push(frame);
        Ok(())
    }

    /// Pops the current call frame. Returns the result if it was the outermost call.
    fn pop_call(&mut self, value: Option<Value>) -> Result<Option<Option<Value>>, InterpError> {
        let mut frame = self.frames.pop().ok_or_else(|| InterpError::internal("return outside of any call"))?;
        self.memory.slots.truncate(frame.base);
        let expression = frame.result;
        frame.values.clear();
        frame.control.clear();
        self.spare.push(frame);
        let Some(caller) = self.frames.last_mut() else {
            return Ok(Some(value));
        };
        if let Some(expression) = expression {
            let value = value.ok_or_else(|| InterpError::internal("a call without its result"))?;
            caller.values[expression.index()] = Some(value);
        }
        Ok(None)
    }

    /// Executes one statement, or continues after the end of a block. Returns the result when the
    /// outermost call has returned.
    fn step(&mut self) -> Result<Option<Option<Value>>, Stop> {
        let frame = self.frames.last_mut().ok_or_else(|| InterpError::internal("no active call"))?;
        let Some(work) = frame.control.last_mut() else {
            return Ok(self.pop_call(None)?);
        };
        match work {
            ControlFrame::Block(rest) => match rest.next() {
                Some(statement) => return self.statement(statement),
                None => {
                    frame.control.pop();
                }
            },
            ControlFrame::Switch { falls, rest } => match rest.next() {
                Some(case) if *falls => {
                    *falls = case.fall_through;
                    frame.control.push(ControlFrame::Block(case.body.iter()));
                }
                _ => {
                    frame.control.pop();
                }
            },
            ControlFrame::Loop { body, continuing, break_if, next } => match next {
                LoopPhase::Body => {
                    if frame.code.is_filter_code {
                        if self.cancel.is_cancelled() {
                            return Err(Stop::Cancelled);
                        }
                        self.fuel = self.fuel.checked_sub(1).ok_or(Stop::OutOfFuel)?;
                    }
                    *next = LoopPhase::Continuing;
                    let body = body.iter();
                    frame.control.push(ControlFrame::Block(body));
                }
                LoopPhase::Continuing => {
                    *next = LoopPhase::BreakIf;
                    let continuing = continuing.iter();
                    frame.control.push(ControlFrame::Block(continuing));
                }
                LoopPhase::BreakIf => {
                    *next = LoopPhase::Body;
                    let condition = *break_if;
                    if let Some(condition) = condition
                        && self.value(condition)?.scalar()?.as_bool()?
                    {
                        self.control()?.pop();
                    }
                }
            },
        }
        Ok(None)
    }

    fn frame(&self) -> Result<&Frame<'p>, InterpError> {
        self.frames.last().ok_or_else(|| InterpError::internal("no active call"))
    }

    fn control(&mut self) -> Result<&mut Vec<ControlFrame<'p>>, InterpError> {
        self.frames.last_mut().map(|f| &mut f.control).ok_or_else(|| InterpError::internal("no active call"))
    }

    fn context(&self) -> Result<Context<'_>, InterpError> {
        let frame = self.frame()?;
        Ok(Context {
            module: self.program.module(),
            layouts: &self.code.layouts,
            types: Types::Function(frame.info),
            fixed: &frame.code.fixed,
            live: &frame.values,
        })
    }

    fn value(&self, expression: Handle<Expression>) -> Result<&Value, InterpError> {
        self.context()?.get(expression)
    }

    fn statement(&mut self, statement: &'p Statement) -> Result<Option<Option<Value>>, Stop> {
        match statement {
            Statement::Emit(range) => {
                for expression in range.clone() {
                    self.emit(expression)?;
                }
            }
            Statement::Block(block) => self.control()?.push(ControlFrame::Block(block.iter())),
            Statement::If { condition, accept, reject } => {
                let branch = if self.value(*condition)?.scalar()?.as_bool()? { accept } else { reject };
                self.control()?.push(ControlFrame::Block(branch.iter()));
            }
            Statement::Switch { selector, cases } => {
                let chosen = match self.value(*selector)?.scalar()? {
                    Scalar::U32(v) => SwitchValue::U32(v),
                    Scalar::I32(v) => SwitchValue::I32(v),
                    other => return Err(InterpError::internal(format!("a switch over {other:?}")).into()),
                };
                let at = |value| cases.iter().position(|case| case.value == value);
                let first = at(chosen).or_else(|| at(SwitchValue::Default)).unwrap_or(cases.len());
                // Enter the first case as if its predecessor fell through.
                self.control()?.push(ControlFrame::Switch { falls: true, rest: cases[first..].iter() });
            }
            Statement::Loop { body, continuing, break_if } => {
                self.control()?.push(ControlFrame::Loop {
                    body,
                    continuing,
                    break_if: *break_if,
                    next: LoopPhase::Body,
                });
            }
            Statement::Break => {
                let work = self.control()?;
                while let Some(ControlFrame::Block(_)) = work.pop() {}
            }
            Statement::Continue => {
                let work = self.control()?;
                while let Some(ControlFrame::Block(_) | ControlFrame::Switch { .. }) = work.last() {
                    work.pop();
                }
            }
            Statement::Return { value } => {
                let value = value.map(|v| self.value(v).cloned()).transpose()?;
                return Ok(self.pop_call(value)?);
            }
            Statement::Store { pointer, value } => {
                let (at, pointer) = (*pointer, self.value(*pointer)?.pointer()?);
                let value = self.value(*value)?.clone();
                if let Space::Map(_) = pointer.space
                    && self.request_map_word(at, pointer, AtomicOp::Store(value.scalar()?.as_u32()?), false)?.is_some()
                {
                    return Ok(None);
                }
                self.memory.store(pointer, &value)?;
            }
            Statement::Call { function, arguments, result } => {
                let arguments = arguments.iter().map(|&a| self.value(a).cloned()).collect::<Result<Vec<_>, _>>()?;
                if self.frame()?.code.is_filter_code {
                    self.trace_access(*function, &arguments)?;
                }
                self.push_call(*function, arguments, *result)?;
            }
            Statement::Atomic { pointer, fun, value, result } => self.atomic(*pointer, *fun, *value, *result)?,
            other => return Err(InterpError::Unsupported(format!("the statement {other:?}")).into()),
        }
        Ok(None)
    }

    /// Packets run one after another here, so the operation is atomic.
    fn atomic(
        &mut self,
        pointer: Handle<Expression>,
        function: AtomicFunction,
        value: Handle<Expression>,
        result: Option<Handle<Expression>>,
    ) -> Result<(), Stop> {
        let (at, pointer) = (pointer, self.value(pointer)?.pointer()?);
        let value = self.value(value)?.scalar()?.as_u32()?;
        let op = match function {
            AtomicFunction::Add => AtomicOp::Add(value),
            AtomicFunction::Min => AtomicOp::Min(value),
            AtomicFunction::Max => AtomicOp::Max(value),
            AtomicFunction::InclusiveOr => AtomicOp::Or(value),
            AtomicFunction::Exchange { compare: None } => AtomicOp::Exchange(value),
            AtomicFunction::Exchange { compare: Some(compare) } => {
                AtomicOp::CompareExchange { expected: self.value(compare)?.scalar()?.as_u32()?, value }
            }
            other => return Err(InterpError::Unsupported(format!("the atomic function {other:?}")).into()),
        };
        let info = self.frame()?.info;
        let uses_result = result.is_some_and(|result| info[result].ref_count > 0);
        let MapReply { before, exchanged } = match self.request_map_word(at, pointer, op, uses_result)? {
            Some(reply) => reply,
            None => {
                let before = self.memory.scalar(pointer)?.as_u32()?;
                let after = op.after(before);
                self.memory.store(pointer, &Value::Scalar(Scalar::U32(after.unwrap_or(before))))?;
                MapReply { before, exchanged: after.is_some() }
            }
        };
        let before = Scalar::U32(before);
        let outcome = match op {
            // `__atomic_compare_exchange_result`: the previous value, and whether it was exchanged.
            AtomicOp::CompareExchange { .. } => Value::Composite(vec![before, Scalar::Bool(exchanged)]),
            _ => Value::Scalar(before),
        };
        if let Some(result) = result {
            let frame = self.frames.last_mut().ok_or_else(|| InterpError::internal("no active call"))?;
            frame.values[result.index()] = Some(outcome);
        }
        Ok(())
    }

    /// Evaluates an expression at this point: later stores do not change its value.
    fn emit(&mut self, handle: Handle<Expression>) -> Result<(), Stop> {
        let frame = self.frame()?;
        if frame.code.fixed[handle.index()].is_some() {
            return Ok(());
        }
        if let (Some(_), Expression::Load { pointer }) = (&self.replies, &frame.function.expressions[handle]) {
            let pointer = self.value(*pointer)?.pointer()?;
            if let Some(reply) = self.request_map_word(handle, pointer, AtomicOp::Load, true)? {
                let frame = self.frames.last_mut().ok_or_else(|| InterpError::internal("no active call"))?;
                frame.values[handle.index()] = Some(Value::Scalar(Scalar::U32(reply.before)));
                return Ok(());
            }
        }
        let (frame, context) = (self.frame()?, self.context()?);
        let value = match &frame.function.expressions[handle] {
            Expression::Load { pointer } => {
                let pointer = context.get(*pointer)?.pointer()?;
                match context.type_of(handle) {
                    TypeInner::Scalar(_) => Value::Scalar(self.memory.scalar(pointer)?),
                    inner => {
                        let slots = self.code.layouts.slots_of(inner);
                        let slots = slots.ok_or_else(|| InterpError::internal("a load of no known size"))?;
                        self.memory.composite(pointer, slots)?
                    }
                }
            }
            // These are set when the call starts.
            Expression::FunctionArgument(_) | Expression::LocalVariable(_) => return Ok(()),
            other => context.evaluate(handle, other)?,
        };
        let frame = self.frames.last_mut().ok_or_else(|| InterpError::internal("no active call"))?;
        frame.values[handle.index()] = Some(value);
        Ok(())
    }

    /// Records the packet bytes that a call of a prelude function reads or writes.
    fn trace_access(&mut self, function: Handle<Function>, arguments: &[Value]) -> Result<(), InterpError> {
        let Some(Access { size, write }) = self.code.functions[function.index()].access else {
            return Ok(());
        };
        let internals = self.program.internals();
        let state = |global: Handle<naga::GlobalVariable>| {
            let place = self.code.globals[global.index()].ok_or_else(|| InterpError::internal("no packet state"))?;
            self.memory.scalar(place)?.as_u32().map(i64::from)
        };
        let (offset, length) = (state(internals.offset)?, state(internals.length)?);
        let at = arguments.get(1).ok_or_else(|| InterpError::internal("a load without an offset"))?;
        let end = i64::from(at.scalar()?.as_u32()?) + i64::from(size);
        if end > length {
            return Ok(());
        }
        // The descriptor still has the packet's original location. Bytes in front of it, added by
        // `adjust_head`, are not the packet's own.
        let end = u32::try_from(offset + end - i64::from(self.memory.descriptor[0])).unwrap_or(0);
        let furthest = if write { &mut self.trace.written_end } else { &mut self.trace.read_end };
        if end > 0 {
            *furthest = Some(furthest.unwrap_or(0).max(end));
        }
        Ok(())
    }
}
