//! Helpers for the tests of XDP objects: whether a program's packets may run in any order, which
//! documented features it uses, and the table of programs by devices.

use std::collections::{BTreeMap, BTreeSet};

use naga::{Block, Statement};
use portcullis_core::program::Program;

/// Returns whether a program only reads its maps and adds to them, apart from maps with `scratch`
/// in their names, where each packet reads only what it has written. The values that packets read
/// may still depend on their order, which the kernel's results show.
pub fn only_adds(program: &Program) -> bool {
    let module = program.module();
    let mut called = BTreeSet::new();
    calls(body(program), &mut called);
    let names = called.into_iter().filter_map(|function| module.functions[function].name.as_deref());
    let names: Vec<&str> = names.collect();
    let allowed = ["find", "read", "get", "add", "add64", "add_part", "match"];
    program.maps().iter().filter(|map| !map.name.contains("scratch")).all(|map| {
        let of_map = |name: &&str| {
            let rest = name.strip_prefix("x_").or(name.strip_prefix("pc_do_")).unwrap_or(name);
            let rest = rest.strip_prefix(map.name.as_str());
            rest.and_then(|rest| rest.strip_prefix('_')).is_some_and(|end| !allowed.contains(&end))
        };
        // One map's name may be a prefix of another's: then both maps are checked, and either can
        // reject the program.
        !names.iter().any(of_map)
    })
}

/// Returns the program's statements, which are in a function of their own if the filter counts
/// traps.
fn body(program: &Program) -> &Block {
    let functions = &program.module().functions;
    let own = functions.iter().find(|(_, function)| function.name.as_deref() == Some("xdp_program"));
    own.map_or(&functions[program.filter()].body, |(_, function)| &function.body)
}

fn calls(block: &Block, into: &mut BTreeSet<naga::Handle<naga::Function>>) {
    for statement in block {
        match statement {
            Statement::Call { function, .. } => drop(into.insert(*function)),
            Statement::Block(inner) => calls(inner, into),
            Statement::If { accept, reject, .. } => [accept, reject].into_iter().for_each(|it| calls(it, into)),
            Statement::Switch { cases, .. } => cases.iter().for_each(|case| calls(&case.body, into)),
            Statement::Loop { body, continuing, .. } => [body, continuing].into_iter().for_each(|it| calls(it, into)),
            _ => {}
        }
    }
}

/// Returns the names in code style from one row of a page's first table.
pub fn claimed(page: &str, row: &str) -> Vec<String> {
    let start = format!("| {row} |");
    let line = page.lines().find(|line| line.starts_with(&start)).unwrap_or_default();
    line.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns the helpers and map types that a program uses, as the documentation names them.
pub fn used(program: &Program) -> BTreeSet<String> {
    let Some(origin) = portcullis_xdp::ObjectInfo::of(program) else { return BTreeSet::new() };
    let helpers = origin.helpers.iter().map(|name| name.trim_start_matches("bpf_").to_owned());
    // Global variables are an array map for the kernel, but not a map that the object declares.
    let maps = origin.maps.iter().flatten().filter(|map| map.data.is_none());
    helpers.chain(maps.map(|map| map.ty.name())).collect()
}

/// Returns the features of a program that matter to a device: helpers, map types, global variable
/// sections, the functions behind them by map kind, and whether the program has loops.
pub fn parts(program: &Program) -> BTreeSet<String> {
    let mut parts = used(program);
    let Some(origin) = portcullis_xdp::ObjectInfo::of(program) else { return parts };
    let module = program.module();
    let body = body(program);
    let mut called = BTreeSet::new();
    calls(body, &mut called);
    for function in called {
        let name = module.functions[function].name.as_deref().unwrap_or_default();
        let rest = name.strip_prefix("x_").unwrap_or(name);
        // Take the longest name, as one may be a prefix of another.
        let of_map = program.maps().iter().zip(&origin.maps).filter_map(|(map, definition)| {
            let what = rest.strip_prefix(map.name.as_str())?.strip_prefix('_')?;
            let kind = definition.as_ref().map_or_else(|| map.name.clone(), |it| it.ty.name());
            Some((map.name.len(), format!("{kind} {what}")))
        });
        parts.insert(of_map.max().map_or_else(|| name.to_owned(), |(_, what)| what));
    }
    let data = origin.maps.iter().flatten().filter(|map| map.data.is_some());
    parts.extend(data.map(|map| map.name.clone()));
    parts.extend(loops(body).then(|| "a loop".to_owned()));
    parts
}

fn loops(block: &Block) -> bool {
    block.iter().any(|statement| match statement {
        Statement::Loop { .. } => true,
        Statement::Block(inner) => loops(inner),
        Statement::If { accept, reject, .. } => loops(accept) || loops(reject),
        Statement::Switch { cases, .. } => cases.iter().any(|case| loops(&case.body)),
        _ => false,
    })
}

/// Results by program and device.
#[derive(Debug, Default)]
pub struct Table {
    devices: Vec<String>,
    rows: BTreeMap<String, BTreeMap<usize, Cell>>,
}

/// Number of packets that a program ran over, and whether any result differed.
#[derive(Debug, Clone, Copy)]
struct Cell {
    packets: usize,
    differs: bool,
}

impl Table {
    /// Records a program's result on a device.
    pub fn note(&mut self, device: &str, program: &str, packets: usize, differs: bool) {
        let number = self.devices.iter().position(|it| it == device).unwrap_or_else(|| {
            self.devices.push(device.to_owned());
            self.devices.len() - 1
        });
        self.rows.entry(program.to_owned()).or_default().insert(number, Cell { packets, differs });
    }

    /// Prints a row per program and a column per device, with the number of packets compared.
    pub fn print(&self) {
        self.devices.iter().enumerate().for_each(|(number, device)| println!("[{number:2}] {device}"));
        let width = self.rows.keys().map(String::len).max().unwrap_or(0);
        let head: String = (0..self.devices.len()).map(|number| format!("{:>6}", format!("[{number}]"))).collect();
        println!("{:width$}{head}", "packets the same as in the kernel");
        let (mut all, mut wrong) = (0, 0);
        for (program, cells) in &self.rows {
            let cell = |number| match cells.get(&number) {
                None => format!("{:>6}", "-"),
                Some(Cell { differs: true, .. }) => format!("{:>6}", "DIFF"),
                Some(Cell { packets, .. }) => format!("{packets:>6}"),
            };
            let line: String = (0..self.devices.len()).map(cell).collect();
            println!("{program:width$}{line}");
            all += cells.values().map(|cell| cell.packets).sum::<usize>();
            wrong += cells.values().filter(|cell| cell.differs).count();
        }
        println!("{} programs, {} devices, {all} packets, {wrong} differences", self.rows.len(), self.devices.len());
    }
}
