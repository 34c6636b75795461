// Draws a dashboard by Grafana's own packages: fields, units, overrides, scales, lines, legends.
// What these leave to Grafana's server and its data source is done here: variables are filled in,
// a Prometheus is asked, and a series gets the name of its legend.
import React from 'react';
import plotStyle from 'uplot/dist/uPlot.min.css';
import { createRoot } from 'react-dom/client';
import {
  FieldConfigOptionsRegistry, FieldType, applyFieldOverrides, createTheme, dateTime,
  getFieldDisplayName, identityOverrideProcessor, toDataFrame,
} from '@grafana/data';
import { GlobalStyles, PanelChrome, ThemeContext, TimeSeries } from '@grafana/ui';

// Grafana's grid: columns, and the pixels of a row and of the gap between two panels.
const COLUMNS = 24, ROW = 30, GAP = 8;
const THEME = createTheme({ colors: { mode: 'light' } });
// What Grafana's panel has where a dashboard says nothing.
const DEFAULTS = {
  drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, pointSize: 5,
  showPoints: 'auto', spanNulls: false, axisPlacement: 'auto', axisLabel: '', gradientMode: 'none',
  scaleDistribution: { type: 'linear' }, stacking: { mode: 'none', group: 'A' },
  hideFrom: { legend: false, tooltip: false, viz: false }, thresholdsStyle: { mode: 'off' },
};
const option = (id, more) => ({
  id, path: id, name: id, process: identityOverrideProcessor, shouldApply: () => true, ...more,
});
const OPTIONS = new FieldConfigOptionsRegistry(() => [
  ...['unit', 'min', 'max', 'color'].map((id) => option(id)),
  ...[...Object.keys(DEFAULTS), 'lineStyle'].map(
    (path) => option(`custom.${path}`, { path, isCustom: true })),
]);

async function asked(address, query, { from, to, step }) {
  const words = new URLSearchParams({ query, start: from, end: to, step });
  const found = await (await fetch(`${address}/api/v1/query_range?${words}`)).json();
  if (found.status !== 'success') throw new Error(`${query}: ${found.error}`);
  return found.data.result;
}

function frame(target, { metric, values }, step) {
  const shown = target.legendFormat.replace(/\{\{(\w+)\}\}/g, (_, label) => metric[label] ?? '');
  const times = { name: 'Time', type: FieldType.time, values: values.map(([at]) => at * 1000) };
  const numbers = { name: 'Value', type: FieldType.number, values: values.map(([, v]) => Number(v)) };
  return toDataFrame({ refId: target.refId, fields: [
    { ...times, config: { interval: step * 1000 } },
    { ...numbers, labels: metric, config: { displayNameFromDS: shown } },
  ] });
}

async function frames(panel, { address, variables, range }) {
  const found = await Promise.all(panel.targets.map(async (target) => {
    const query = Object.entries(variables).reduce(
      (text, [name, value]) => text.replaceAll(`$${name}`, value), target.expr);
    const series = await asked(address, query, range);
    return series.map((one) => frame(target, one, range.step));
  }));
  const { defaults, overrides } = panel.fieldConfig;
  const whole = { color: { mode: 'palette-classic' }, ...defaults };
  return applyFieldOverrides({
    data: found.flat(), theme: THEME, timeZone: 'utc', fieldConfigRegistry: OPTIONS,
    fieldConfig: { defaults: { ...whole, custom: { ...DEFAULTS, ...defaults.custom } }, overrides },
    replaceVariables: (text) => text,
  });
}

function Panel({ panel, data, range, place }) {
  const times = { from: dateTime(range.from * 1000), to: dateTime(range.to * 1000) };
  return <div style={place} data-panel={panel.title}>
    <PanelChrome title={panel.title} description={panel.description}
      width={place.width} height={place.height}>
      {(width, height) => data.length > 0 && <TimeSeries frames={data} structureRev={1}
        width={width} height={height} timeZone="utc" timeRange={{ ...times, raw: times }}
        legend={panel.options.legend} options={panel.options}>{() => null}</TimeSeries>}
    </PanelChrome>
  </div>;
}

function told(data) {
  return data.map((one) => {
    const field = one.fields[1];
    const { prefix = '', text, suffix = '' } = field.display(field.values.at(-1));
    return {
      name: getFieldDisplayName(field, one, data),
      dashed: field.config.custom.lineStyle?.fill === 'dash',
      last: prefix + text + suffix,
    };
  });
}

// Returns the lines of each panel as Grafana names, formats and dashes them.
window.draw = async (dashboard, wishes) => {
  const column = (window.innerWidth - GAP) / COLUMNS;
  const found = {}, shown = [];
  let bottom = 0;
  for (const panel of dashboard.panels) {
    const { x, y, w, h } = panel.gridPos;
    const place = {
      position: 'absolute', left: x * column + GAP, top: y * (ROW + GAP) + GAP,
      width: w * column - GAP, height: h * (ROW + GAP) - GAP,
    };
    bottom = Math.max(bottom, place.top + place.height + GAP);
    if (panel.type === 'row') {
      shown.push(<h4 key={panel.id} style={place}>{panel.title}</h4>);
      continue;
    }
    const data = await frames(panel, wishes);
    found[panel.title] = told(data);
    shown.push(<Panel key={panel.id} {...{ panel, data, place }} range={wishes.range} />);
  }
  const root = document.getElementById('root');
  root.style.cssText = `position: relative; height: ${bottom}px`;
  createRoot(root).render(<ThemeContext.Provider value={THEME}>
    <GlobalStyles /><style>{plotStyle}</style>{shown}
  </ThemeContext.Provider>);
  return found;
};
