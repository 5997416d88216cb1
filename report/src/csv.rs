//! Results as CSV: a line per cell, with empty fields for what was not measured.

use super::measure::LOADS;
use super::results::{Load, Measured, Outcome, Results, StopReason};

/// Names of the columns before those of [`LOADS`].
const COLUMNS: &str = "filter,device,batch,packets,packet_bytes,transfer,dispatch,outcome,detail,\
    mpps,mpps_low,mpps_high,gbps,repetitions,ended,compared,\
    latency_p50_s,latency_p99_s,latency_p999_s,latencies,bus_bytes,copied_bytes,of_ceiling,ceiling,\
    gather_s,upload_s,kernel_s,download_s,verdicts_s";

/// Names of the columns of a load; before them stands, for 30 % of the measured rate, `load_30_`.
const LOAD_COLUMNS: [&str; 4] = ["mpps", "p50_s", "p99_s", "p999_s"];

/// Formats the results as CSV.
///
/// # Errors
/// Never in practice: the rows are written to memory.
pub fn csv(results: &Results) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let loads = LOADS.iter().flat_map(|load| LOAD_COLUMNS.map(|name| format!("load_{:.0}_{name}", load * 100.0)));
    writer.write_record(COLUMNS.split(',').map(str::to_owned).chain(loads))?;
    for cell in &results.cells {
        let (outcome, detail, measured) = match &cell.outcome {
            Outcome::Measured(measured) => ("measured", "", Some(&**measured)),
            Outcome::Mismatch { detail } => ("WRONG", detail.as_str(), None),
            Outcome::Failed { reason } => ("failed", reason.as_str(), None),
        };
        let number = |of: &dyn Fn(&Measured) -> Option<f64>| {
            measured.and_then(of).map(|number| number.to_string()).unwrap_or_default()
        };
        let text = |of: &dyn Fn(&Measured) -> String| measured.map(of).unwrap_or_default();
        let stage = |of: &dyn Fn(&super::results::Stages) -> f64| number(&|it| it.stages.as_ref().map(of));
        let mut row = vec![
            cell.filter.clone(),
            cell.device.clone(),
            cell.batch.to_string(),
            cell.packets.clone(),
            cell.packet_bytes.to_string(),
            cell.transfer.clone(),
            cell.dispatch.clone(),
            outcome.into(),
            detail.into(),
            number(&|it| Some(it.mpps.median)),
            number(&|it| Some(it.mpps.low)),
            number(&|it| Some(it.mpps.high)),
            number(&|it| Some(it.gbps)),
            text(&|it| it.repetitions.to_string()),
            text(&|it| stop_reason_name(it.ended).into()),
            text(&|it| it.compared.to_string()),
            number(&|it| Some(it.latency.p50)),
            number(&|it| Some(it.latency.p99)),
            number(&|it| Some(it.latency.p999)),
            text(&|it| it.latencies.to_string()),
            number(&|it| it.bus_bytes),
            number(&|it| it.copied_bytes),
            number(&|it| it.of_ceiling.as_ref().map(|(share, _)| *share)),
            text(&|it| it.of_ceiling.as_ref().map(|(_, name)| name.clone()).unwrap_or_default()),
            stage(&|it| it.gather),
            stage(&|it| it.upload),
            stage(&|it| it.kernel),
            stage(&|it| it.download),
            stage(&|it| it.verdicts),
        ];
        for offered in LOADS {
            let load =
                |of: &dyn Fn(&Load) -> f64| number(&|it| it.loads.iter().find(|load| load.offered == offered).map(of));
            row.push(load(&|it| it.mpps));
            row.push(load(&|it| it.latency.p50));
            row.push(load(&|it| it.latency.p99));
            row.push(load(&|it| it.latency.p999));
        }
        writer.write_record(row)?;
    }
    let bytes = writer.into_inner().map_err(|error| error.into_error())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn stop_reason_name(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Narrow => "narrow",
        StopReason::Time => "time",
        StopReason::Interrupted => "interrupted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn a_line_a_cell_and_no_speed_where_a_device_is_wrong() {
        let results = fixture::full();
        let text = csv(&results).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let columns = reader.headers().unwrap().clone();
        assert_eq!(columns.len(), 29 + 4 * LOADS.len());
        assert_eq!(&columns[28], "verdicts_s");
        let first_load = columns.iter().skip(29).take(4).collect::<Vec<_>>();
        assert_eq!(first_load, ["load_10_mpps", "load_10_p50_s", "load_10_p99_s", "load_10_p999_s"]);
        let rows: Vec<_> = reader.records().map(Result::unwrap).collect();
        assert_eq!(rows.len(), results.cells.len());
        let mut loads = 0;
        for (row, cell) in rows.iter().zip(&results.cells) {
            assert_eq!((&row[0], &row[1], &row[2]), (&*cell.filter, &*cell.device, &*cell.batch.to_string()));
            match &cell.outcome {
                Outcome::Measured(it) => {
                    assert_eq!(row[9].parse(), Ok(it.mpps.median));
                    for percent in [10, 30, 50, 70, 90] {
                        let column = columns.iter().position(|name| name == format!("load_{percent}_mpps")).unwrap();
                        let found: Vec<_> = row.iter().skip(column).take(4).map(|text| text.parse().ok()).collect();
                        let load = it.loads.iter().find(|load| load.offered == f64::from(percent) / 100.0);
                        let wanted = load.map(|it| [it.mpps, it.latency.p50, it.latency.p99, it.latency.p999]);
                        let wanted = wanted.map_or([None; 4], |numbers| numbers.map(Some));
                        assert_eq!(found, wanted, "{percent} %");
                    }
                    loads += it.loads.len();
                }
                Outcome::Mismatch { detail } => assert_eq!((&row[7], &row[8], &row[9]), ("WRONG", detail.as_str(), "")),
                Outcome::Failed { reason } => assert_eq!((&row[7], &row[8], &row[9]), ("failed", reason.as_str(), "")),
            }
        }
        assert!(loads > 0, "no cell of the fixture has latencies under load");
    }
}
