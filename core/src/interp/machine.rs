//! Statements and calls. The machine keeps its own stack of what is under way (calls, and in each
//! the blocks, loops and switches), so that no filter, however deeply nested, uses up the host's.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::slice::Iter;

use naga::valid::FunctionInfo;
use naga::{AtomicFunction, Block, Expression, Function, Handle, Statement, SwitchCase, SwitchValue, TypeInner};

use super::expression::{Context, Types};
use super::map_requests::{Answers, AtomicOp, MapReply, MapRequest};
use super::memory::Memory;
use super::prepare::{Access, Code, FunctionCode};
use super::value::{Pointer, Scalar, Space, Value};
use super::{InterpError, Outcome, Trace};
use crate::device::CancelToken;
use crate::packet::{Metadata, Verdict};
use crate::program::Program;

/// Why a call did not come to its end.
#[derive(Debug)]
pub(super) enum Stop {
    /// The packet is aborted.
    OutOfFuel,
    /// The [`CancelToken`] was used.
    Cancelled,
    /// There is no answer yet to this.
    Blocked(MapRequest),
    /// See [`InterpError`].
    Error(InterpError),
}

impl Stop {
    /// What is wrong where nothing but an error can have stopped a packet.
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

/// Something of a function's body that is not finished. What is above it on the stack is inside it.
enum Work<'p> {
    /// The rest of a block.
    Block(Iter<'p, Statement>),
    /// A switch whose case is being executed; the cases behind that one are left for falling
    /// through.
    Switch { falls: bool, rest: Iter<'p, SwitchCase> },
    /// A loop.
    Loop { body: &'p Block, continuing: &'p Block, break_if: Option<Handle<Expression>>, next: Phase },
}

/// What a loop does when what is above it on the stack is finished.
#[derive(Clone, Copy)]
enum Phase {
    Body,
    Continuing,
    BreakIf,
}

/// A call under way.
struct Frame<'p> {
    function: &'p Function,
    info: &'p FunctionInfo,
    code: &'p FunctionCode,
    /// By expression handle: what has been evaluated so far.
    values: Vec<Option<Value>>,
    /// Where its locals begin in [`Memory::slots`].
    base: usize,
    work: Vec<Work<'p>>,
    /// The caller's expression that takes the result.
    result: Option<Handle<Expression>>,
}

/// Runs packets through one program, one after the other.
pub(super) struct Machine<'p> {
    program: &'p Program,
    code: &'p Code,
    cancel: &'p CancelToken,
    pub(super) memory: Memory,
    /// What map operations give, where the maps are somebody else's.
    pub(super) answers: Option<Answers>,
    frames: Vec<Frame<'p>>,
    /// Frames of calls that are over, kept for their memory.
    spare: Vec<Frame<'p>>,
    fuel: u32,
    pub(super) trace: Trace,
}

impl<'p> Machine<'p> {
    pub(super) fn new(
        program: &'p Program,
        code: &'p Code,
        maps: Vec<Vec<u32>>,
        cancel: &'p CancelToken,
    ) -> Machine<'p> {
        Machine {
            program,
            code,
            cancel,
            memory: Memory::with_maps(maps),
            answers: None,
            frames: Vec::new(),
            spare: Vec::new(),
            fuel: 0,
            trace: Trace::default(),
        }
    }

    /// Runs one packet, which begins `misalignment` bytes past a word's start, as a batch of its
    /// own; gives the normalised return value. The packet is then where [`Memory::descriptor`]
    /// says.
    pub(super) fn packet(&mut self, packet: &[u8], misalignment: usize, metadata: &Metadata) -> Result<u32, Stop> {
        self.memory.begin(packet, misalignment, metadata, &self.code.privates);
        self.fuel = self.program.fuel();
        self.trace = Trace::default();
        let index = || Value::Scalar(Scalar::U32(0));
        let internals = self.program.internals();
        self.call(internals.enter, vec![index()])?;
        let verdict = match self.call(self.program.filter(), vec![index()]) {
            Ok(value) => {
                let value = value.ok_or_else(|| InterpError::internal("the filter returned nothing"))?;
                let verdict = self.call(internals.verdict, vec![value])?;
                verdict.ok_or_else(|| InterpError::internal("no verdict came back"))?.scalar()?.as_u32()?
            }
            // What was done until here stays done.
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

    /// What became of the packet that has just been run.
    pub(super) fn outcome(&self, verdict: Verdict) -> Outcome {
        let [offset, length] = self.memory.descriptor.map(|v| v as usize);
        let packet = (offset..offset + length).map(|at| self.memory.byte(at)).collect();
        Outcome { verdict, packet, trace: self.trace }
    }

    /// Asks for a word of a map, where the maps are somebody else's; `None` for all other memory.
    fn ask(
        &mut self,
        at: Handle<Expression>,
        pointer: Pointer,
        what: AtomicOp,
        looks: bool,
    ) -> Result<Option<MapReply>, Stop> {
        match (&mut self.answers, pointer) {
            (Some(answers), Pointer { space: Space::Map(map), slot }) => {
                answers.next(MapRequest { map, at: slot, what, looks }, at.index()).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// See [`Progress::Blocked`](super::asking::Next::Asks).
    pub(super) fn state(&self, request: MapRequest) -> u64 {
        let mut hasher = DefaultHasher::new();
        (request, self.answers.as_ref().map(|answers| answers.at), self.fuel).hash(&mut hasher);
        self.memory.hash(&mut hasher);
        for frame in &self.frames {
            (std::ptr::from_ref(frame.function), frame.base, frame.result).hash(&mut hasher);
            for work in &frame.work {
                match work {
                    Work::Block(rest) => (rest.as_slice().as_ptr(), rest.len()).hash(&mut hasher),
                    Work::Switch { falls, rest } => {
                        (falls, rest.as_slice().as_ptr(), rest.len()).hash(&mut hasher);
                    }
                    Work::Loop { body, next, .. } => (std::ptr::from_ref(*body), *next as u8).hash(&mut hasher),
                }
            }
            format!("{:?}", frame.values).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Calls a function and runs until it has returned.
    fn call(&mut self, function: Handle<Function>, arguments: Vec<Value>) -> Result<Option<Value>, Stop> {
        self.frames.clear();
        self.enter(function, arguments, None)?;
        loop {
            if let Some(result) = self.step()? {
                return Ok(result);
            }
        }
    }

    fn enter(
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
            work: Vec::new(),
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
        frame.work.push(Work::Block(function.body.iter()));
        self.frames.push(frame);
        Ok(())
    }

    /// Ends the call on top. When it was the outermost, its result is given back.
    fn leave(&mut self, value: Option<Value>) -> Result<Option<Option<Value>>, InterpError> {
        let mut frame = self.frames.pop().ok_or_else(|| InterpError::internal("a return outside any call"))?;
        self.memory.slots.truncate(frame.base);
        let expression = frame.result;
        frame.values.clear();
        frame.work.clear();
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

    /// Executes one statement, or goes on where a block has ended. Gives the result when the
    /// outermost call has returned.
    fn step(&mut self) -> Result<Option<Option<Value>>, Stop> {
        let frame = self.frames.last_mut().ok_or_else(|| InterpError::internal("nothing is under way"))?;
        let Some(work) = frame.work.last_mut() else {
            return Ok(self.leave(None)?);
        };
        match work {
            Work::Block(rest) => match rest.next() {
                Some(statement) => return self.statement(statement),
                None => {
                    frame.work.pop();
                }
            },
            Work::Switch { falls, rest } => match rest.next() {
                Some(case) if *falls => {
                    *falls = case.fall_through;
                    frame.work.push(Work::Block(case.body.iter()));
                }
                _ => {
                    frame.work.pop();
                }
            },
            Work::Loop { body, continuing, break_if, next } => match next {
                Phase::Body => {
                    if frame.code.own {
                        if self.cancel.is_cancelled() {
                            return Err(Stop::Cancelled);
                        }
                        self.fuel = self.fuel.checked_sub(1).ok_or(Stop::OutOfFuel)?;
                    }
                    *next = Phase::Continuing;
                    let body = body.iter();
                    frame.work.push(Work::Block(body));
                }
                Phase::Continuing => {
                    *next = Phase::BreakIf;
                    let continuing = continuing.iter();
                    frame.work.push(Work::Block(continuing));
                }
                Phase::BreakIf => {
                    *next = Phase::Body;
                    let condition = *break_if;
                    if let Some(condition) = condition
                        && self.value(condition)?.scalar()?.as_bool()?
                    {
                        self.work()?.pop();
                    }
                }
            },
        }
        Ok(None)
    }

    fn frame(&self) -> Result<&Frame<'p>, InterpError> {
        self.frames.last().ok_or_else(|| InterpError::internal("nothing is under way"))
    }

    fn work(&mut self) -> Result<&mut Vec<Work<'p>>, InterpError> {
        self.frames.last_mut().map(|f| &mut f.work).ok_or_else(|| InterpError::internal("nothing is under way"))
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
            Statement::Block(block) => self.work()?.push(Work::Block(block.iter())),
            Statement::If { condition, accept, reject } => {
                let branch = if self.value(*condition)?.scalar()?.as_bool()? { accept } else { reject };
                self.work()?.push(Work::Block(branch.iter()));
            }
            Statement::Switch { selector, cases } => {
                let chosen = match self.value(*selector)?.scalar()? {
                    Scalar::U32(v) => SwitchValue::U32(v),
                    Scalar::I32(v) => SwitchValue::I32(v),
                    other => return Err(InterpError::internal(format!("a switch over {other:?}")).into()),
                };
                let at = |value| cases.iter().position(|case| case.value == value);
                let first = at(chosen).or_else(|| at(SwitchValue::Default)).unwrap_or(cases.len());
                // The first case is entered as if the one before it fell through.
                self.work()?.push(Work::Switch { falls: true, rest: cases[first..].iter() });
            }
            Statement::Loop { body, continuing, break_if } => {
                self.work()?.push(Work::Loop { body, continuing, break_if: *break_if, next: Phase::Body });
            }
            Statement::Break => {
                let work = self.work()?;
                while let Some(Work::Block(_)) = work.pop() {}
            }
            Statement::Continue => {
                let work = self.work()?;
                while let Some(Work::Block(_) | Work::Switch { .. }) = work.last() {
                    work.pop();
                }
            }
            Statement::Return { value } => {
                let value = value.map(|v| self.value(v).cloned()).transpose()?;
                return Ok(self.leave(value)?);
            }
            Statement::Store { pointer, value } => {
                let (at, pointer) = (*pointer, self.value(*pointer)?.pointer()?);
                let value = self.value(*value)?.clone();
                if let Space::Map(_) = pointer.space
                    && self.ask(at, pointer, AtomicOp::Store(value.scalar()?.as_u32()?), false)?.is_some()
                {
                    return Ok(None);
                }
                self.memory.store(pointer, &value)?;
            }
            Statement::Call { function, arguments, result } => {
                let arguments = arguments.iter().map(|&a| self.value(a).cloned()).collect::<Result<Vec<_>, _>>()?;
                if self.frame()?.code.own {
                    self.observe(*function, &arguments)?;
                }
                self.enter(*function, arguments, *result)?;
            }
            Statement::Atomic { pointer, fun, value, result } => self.atomic(*pointer, *fun, *value, *result)?,
            other => return Err(InterpError::Unsupported(format!("the statement {other:?}")).into()),
        }
        Ok(None)
    }

    /// Packets run one after the other here, so nobody comes between.
    fn atomic(
        &mut self,
        pointer: Handle<Expression>,
        function: AtomicFunction,
        value: Handle<Expression>,
        result: Option<Handle<Expression>>,
    ) -> Result<(), Stop> {
        let (at, pointer) = (pointer, self.value(pointer)?.pointer()?);
        let value = self.value(value)?.scalar()?.as_u32()?;
        let what = match function {
            AtomicFunction::Add => AtomicOp::Add(value),
            AtomicFunction::Exchange { compare: None } => AtomicOp::Exchange(value),
            AtomicFunction::Exchange { compare: Some(compare) } => {
                AtomicOp::CompareExchange { expected: self.value(compare)?.scalar()?.as_u32()?, value }
            }
            other => return Err(InterpError::Unsupported(format!("the atomic function {other:?}")).into()),
        };
        let info = self.frame()?.info;
        let looks = result.is_some_and(|result| info[result].ref_count > 0);
        let MapReply { before, exchanged } = match self.ask(at, pointer, what, looks)? {
            Some(answer) => answer,
            None => {
                let before = self.memory.scalar(pointer)?.as_u32()?;
                let after = what.after(before);
                self.memory.store(pointer, &Value::Scalar(Scalar::U32(after.unwrap_or(before))))?;
                MapReply { before, exchanged: after.is_some() }
            }
        };
        let before = Scalar::U32(before);
        let found = match what {
            // __atomic_compare_exchange_result: what there was, and whether it was exchanged.
            AtomicOp::CompareExchange { .. } => Value::Composite(vec![before, Scalar::Bool(exchanged)]),
            _ => Value::Scalar(before),
        };
        if let Some(result) = result {
            let frame = self.frames.last_mut().ok_or_else(|| InterpError::internal("nothing is under way"))?;
            frame.values[result.index()] = Some(found);
        }
        Ok(())
    }

    /// Evaluates an expression, now: later changes of memory do not change its value.
    fn emit(&mut self, handle: Handle<Expression>) -> Result<(), Stop> {
        let frame = self.frame()?;
        if frame.code.fixed[handle.index()].is_some() {
            return Ok(());
        }
        if let (Some(_), Expression::Load { pointer }) = (&self.answers, &frame.function.expressions[handle]) {
            let pointer = self.value(*pointer)?.pointer()?;
            if let Some(answer) = self.ask(handle, pointer, AtomicOp::Load, true)? {
                let frame = self.frames.last_mut().ok_or_else(|| InterpError::internal("nothing is under way"))?;
                frame.values[handle.index()] = Some(Value::Scalar(Scalar::U32(answer.before)));
                return Ok(());
            }
        }
        let (frame, context) = (self.frame()?, self.context()?);
        let value = match &frame.function.expressions[handle] {
            Expression::Load { pointer } => {
                let pointer = context.get(*pointer)?.pointer()?;
                match context.inner(handle) {
                    TypeInner::Scalar(_) => Value::Scalar(self.memory.scalar(pointer)?),
                    inner => {
                        let slots = self.code.layouts.slots_of(inner);
                        let slots = slots.ok_or_else(|| InterpError::internal("a load of no known size"))?;
                        self.memory.composite(pointer, slots)?
                    }
                }
            }
            // Their values are there since the call began.
            Expression::FunctionArgument(_) | Expression::LocalVariable(_) => return Ok(()),
            other => context.evaluate(handle, other)?,
        };
        let frame = self.frames.last_mut().ok_or_else(|| InterpError::internal("nothing is under way"))?;
        frame.values[handle.index()] = Some(value);
        Ok(())
    }

    /// Notes which bytes of the packet a call of the prelude reads or writes.
    fn observe(&mut self, function: Handle<Function>, arguments: &[Value]) -> Result<(), InterpError> {
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
        // The descriptor still says where the packet lay when it arrived. Bytes in front of it,
        // which adjust_head has added, are no bytes of its own.
        let end = u32::try_from(offset + end - i64::from(self.memory.descriptor[0])).unwrap_or(0);
        let furthest = if write { &mut self.trace.written_end } else { &mut self.trace.read_end };
        if end > 0 {
            *furthest = Some(furthest.unwrap_or(0).max(end));
        }
        Ok(())
    }
}
