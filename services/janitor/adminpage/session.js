// One session: its contents, connections and timeline, and its end.

import { $, clock, el, number, setText } from './base.js'
import { age, ago, bars, bytes, counted, holdings, keyed, now, setAttribute, setParts } from './dom.js'

export const ITEMS = 200 // requested connections, happenings and published entries of a session

let shown = { detail: null, connections: null, timeline: null }
let onEnd = () => {}

export function onEnding(handler) {
  onEnd = handler
}

// clearSession empties the view for another session.
export function clearSession(name) {
  shown = { detail: null, connections: null, timeline: null }
  setText($('session-title'), name)
  $('session-title').title = name
  for (const id of ['session-facts', 'connections-hint', 'timeline-hint', 'streams-hint', 'ended', 'owner', 'metadata']) setText($(id), '')
  for (const id of ['session-bars', 'connections', 'timeline', 'streams']) $(id).replaceChildren()
  for (const id of ['session-watch', 'session-rest', 'no-connections', 'no-timeline', 'no-streams', 'metadata-more', 'connections-table', 'streams-table']) $(id).hidden = true
  setText($('session-facts'), 'loading …')
  $('by-stream').value = ''
  keyStreams([])
}

// showSession shows a session. Without a detail there is none of this name,
// but clients may wait for one.
export function showSession(fresh) {
  shown = fresh
  const { detail, connections, timeline } = shown
  const waited = connections !== null && connections.total + timeline.happenings.length > 0
  $('session-watch').hidden = detail === null && !waited
  $('session-rest').hidden = detail === null
  if (detail) renderDetail(detail)
  else {
    setText($('session-facts'), 'There is no session of this name.')
    bars($('session-bars'), [])
    $('metadata-more').hidden = true
  }
  if (!$('session-watch').hidden) {
    renderConnections(connections)
    renderTimeline()
  }
}

// ---- Contents -----------------------------------------------------------------------

function renderDetail(d) {
  const facts = [d.state]
  if (d.created) facts.push(`created ${ago(d.created)}`)
  if (d.ended) facts.push(`ended ${ago(d.ended)}`)
  if (d.newest) facts.push(`newest event ${ago(d.newest)}`)
  const next = d.upcoming[0]
  if (next) facts.push(`next deletion: ${counted(next.entries, 'event')} (${next.reason.replaceAll('_', ' ')}), ${next.at ? when(next.at) : 'with the next sweep'}`)
  setText($('session-facts'), facts.join(' · '))
  bars($('session-bars'), holdings(d))
  $('metadata-more').hidden = !d.owner && !d.metadata
  setText($('owner'), d.owner ? `Owner: ${d.owner}` : 'No owner')
  setText($('metadata'), d.metadata ? JSON.stringify(d.metadata, null, 2) : '')
  $('metadata').hidden = !d.metadata
  $('close').disabled = d.state !== 'open'
  $('clear').disabled = false

  // While the user points at a stream, or chooses one, the listed ones keep their order.
  const held = $('streams').matches(':hover') || [$('streams'), $('by-stream')].some((at) => at.contains(document.activeElement))
  const places = new Map(held ? [...$('streams').children].map((row, i) => [row.key, i]) : [])
  const place = (s) => places.get(s.stream) ?? places.size
  const streams = d.streams.slice().sort((a, b) => place(a) - place(b) || (b.newest ?? '').localeCompare(a.newest ?? '') || a.stream.localeCompare(b.stream))
  setText($('streams-hint'), counted(streams.length + (d.omittedStreams ?? 0), 'stream') + (streams.length > 200 ? ', the newest 200 here' : ''))
  $('no-streams').hidden = streams.length > 0
  $('streams-table').hidden = streams.length === 0
  keyed($('streams'), streams.slice(0, 200), (s) => s.stream, buildStream, updateStream)
  keyStreams(streams.slice(0, 200).map((s) => s.stream))
}

function when(at) {
  const seconds = Math.round((Date.parse(at) - now()) / 1000)
  if (seconds <= 0) return 'now'
  return seconds < 120 ? `in ${seconds} s` : seconds < 7200 ? `in ${Math.round(seconds / 60)} min` : `in ${Math.round(seconds / 3600)} h`
}

// keyStreams fills the choice of the timeline's stream, and keeps the chosen one.
function keyStreams(names) {
  const chosen = $('by-stream').value
  if (chosen && !names.includes(chosen)) names = [...names, chosen]
  keyed($('by-stream'), ['', ...names], (name) => name, (name) => {
    const option = el('option', '', name || 'All streams')
    option.value = name
    return option
  }, () => {})
  if ($('by-stream').value !== chosen) $('by-stream').value = chosen
}

function buildStream(s) {
  const button = el('button', 'quiet danger', 'Close …')
  button.type = 'button'
  button.setAttribute('aria-label', `Close stream ${s.stream}`)
  button.addEventListener('click', () => onEnd({ stream: s.stream }))
  const name = el('th', 'name', s.stream)
  name.scope = 'row'
  const row = el('tr', '', name, el('td', 'num'), el('td', 'num'), el('td'), el('td', 'num', button))
  row.button = button
  return row
}

function updateStream(row, s) {
  const cells = row.children
  setText(cells[1], number(s.events))
  setText(cells[2], bytes(s.bytes))
  setText(cells[3], s.newest ? age(s.newest) : '–')
  setText(row.button, s.closed ? 'closed' : 'Close …')
  row.button.disabled = s.closed
}

// ---- Connections --------------------------------------------------------------------

const CAME = { start: 'the start', now: 'now', window: 'its cursor', log: 'its cursor, in the log' }
const STATES = { live: 'live', reading: 'reading the log', slow: 'slow', quiet: 'quiet' }

function renderConnections({ connections, total, clients, edges }) {
  const hint = [counted(total, 'event stream')]
  if (clients > total) hint.push(counted(clients - total, 'poll'))
  if (total > connections.length) hint.push(`the newest ${number(connections.length)} here`)
  setText($('connections-hint'), silent(edges) || hint.join(' · '))
  $('no-connections').hidden = connections.length > 0 || edges.answered === 0
  $('connections-table').hidden = connections.length === 0
  keyed($('connections'), connections, (c) => c.edge + c.number, buildConnection, updateConnection)
}

// silent returns a text about edges that did not answer, or none.
export function silent(edges) {
  if (!edges.reachable) return 'The edges cannot be asked: NATS is unavailable.'
  if (edges.answered === 0) return 'No edge responds.'
  return edges.silent > 0 ? `${number(edges.answered)} of ${counted(edges.answered + edges.silent, 'edge')} responded.` : ''
}

function buildConnection(c) {
  const came = CAME[c.came] ?? c.came
  const client = el('th', 'client', el('span', 'address', c.address ?? 'unknown'), el('span', 'hint', label(c)),
    el('span', 'hint narrow', `${c.stream ?? 'all streams'}, from ${came}`))
  client.scope = 'row'
  client.title = `At ${c.host || 'an edge'} (${c.edge}) since ${clock(c.since)}`
  const state = el('span', 'flag')
  const row = el('tr', '', client, el('td', 'name', c.stream ?? 'all streams'), el('td', 'came', came, el('span', 'hint')), el('td', 'num', el('span'), el('span', 'hint')), el('td', 'num'), el('td', '', state))
  if (!c.stream) row.children[1].classList.add('whole')
  row.state = state
  return row
}

const PROTOCOLS = { sse: '', mcp: ' · MCP', mcp_call: ' · MCP call', mcp_sse: ' · MCP 2024' }
const label = (c) => `#${c.number}${PROTOCOLS[c.protocol] ?? ''}`

function updateConnection(row, c) {
  const cells = row.children
  setText(cells[2].lastElementChild, ago(c.since))
  setText(cells[3].firstElementChild, number(c.events))
  setText(cells[3].lastElementChild, c.events > (shown.detail?.events ?? 0) ? 'some deleted since' : '')
  setAttribute(cells[3], 'title', c.sent ? `The last one at ${clock(c.sent)}` : null)
  setText(cells[4], number(c.behind))
  setText(row.state, STATES[c.state] ?? c.state)
  row.state.dataset.level = c.state === 'slow' ? 'bad' : c.state === 'reading' ? 'near' : c.state === 'live' ? 'good' : ''
}

// ---- The timeline ---------------------------------------------------------------------

const ENDS = {
  ended: 'the stream ended', gone: 'the client disconnected', age: 'closed after its maximum age', limit: 'closed before a proxy would cut it',
  expired: 'the token expired',
  drain: 'the edge stopped', slow: 'the client was too slow', failed: 'it could not be served',
}

export function gapParts(h) {
  const parts = [h.requested ? ['asked for events after ', { id: h.requested }] : 'asked for no event ID', ['resumed after ', cursorOf(h)]]
  if (h.certain === false) parts.push('not certain')
  return parts
}

const cursorOf = (h) => (h.cursorId ? { id: h.cursorId } : `position ${h.cursor ?? 0}`)

function happened(h) {
  const who = h.connection ? `#${h.connection}` : 'a poll'
  const from = h.address ? ` from ${h.address}` : ''
  const row = { kind: h.what, at: h.time, stream: h.stream ?? '', key: ['h', h.edge, h.time, h.what, h.connection, h.stream].join('/') }
  switch (h.what) {
    case 'connect':
      return { ...row, title: 'Connected', parts: [who + from, h.came === 'now' ? 'from now' : 'from the start'] }
    case 'resume':
      return { ...row, title: 'Resumed', parts: [who + from, ['after ', cursorOf(h)], h.came === 'log' ? 'from the log' : 'from memory'] }
    case 'gap':
      return { ...row, title: `Gap: ${String(h.reason).replaceAll('_', ' ')}`, parts: [who, ...gapParts(h)] }
    case 'end':
      return { ...row, title: 'Ended', parts: [`${who}: ${ENDS[h.reason] ?? h.reason}`, `${counted(h.events ?? 0, 'event')} sent`, ['up to ', cursorOf(h)]] }
    default:
      return { ...row, title: String(h.what), parts: [who] }
  }
}

const MARKS = { close: 'Closed', clear: 'Cleared' }

function stored(p) {
  const row = { kind: 'publish', at: p.time, stream: p.stream ?? '', first: p.sequence, last: p.sequence, firstID: p.id, lastID: p.id, count: 1, bytes: p.bytes, types: new Set(p.type ? [p.type] : []) }
  if (p.kind !== 'event') return { ...row, kind: 'mark', key: `m/${p.sequence}`, title: MARKS[p.kind] ?? p.kind, parts: [p.stream ? 'the stream' : 'the session', `at position ${p.sequence}`] }
  return row
}

// together makes one row of consecutive events of a stream, and of clients
// that received the same events in the same second.
function together(rows) {
  const out = []
  for (const row of rows) {
    const before = out.at(-1)
    if (row.kind === 'publish' && before?.kind === 'publish' && before.stream === row.stream) {
      before.first = row.first
      before.firstID = row.firstID
      before.count++
      before.bytes += row.bytes
      for (const type of row.types) before.types.add(type)
    } else if (row.kind === 'sent' && before?.kind === 'sent' && before.stream === row.stream && before.second === row.second && before.cursor === row.cursor) {
      before.to.push(...row.to)
    } else out.push(row)
  }
  return out
}

function publishedText(row, connections) {
  row.key = `p/${row.stream}/${row.first}`
  row.title = row.count === 1 ? 'Published' : `Published ${number(row.count)} events`
  const parts = [row.count === 1 ? { id: row.lastID } : [{ id: row.firstID }, ' to ', { id: row.lastID }], bytes(row.bytes)]
  const types = [...row.types].filter((type) => type !== 'message')
  if (types.length > 0) parts.push(types.slice(0, 5).flatMap((type, i) => (i > 0 ? [', ', { type }] : { type })))
  const readers = connections.filter((c) => !c.stream || c.stream === row.stream)
  const got = readers.filter((c) => c.cursor >= row.last)
  if (readers.length > 0) parts.push(`sent to ${number(got.length)} of ${number(readers.length)}${shown.connections.total > connections.length ? ' listed' : ''}`)
  row.parts = parts
}

// sentRow returns the row for the cursor of an open connection.
function sentRow(c) {
  return { kind: 'sent', at: c.sent, stream: c.stream ?? '', key: `s/${c.edge}/${c.number}`, to: [`#${c.number}`], events: c.events, cursor: c.cursor, cursorId: c.cursorId, second: c.sent.slice(0, 19) }
}

function sentText(row) {
  row.title = row.to.length === 1 ? 'Sent' : `Sent to ${number(row.to.length)} clients`
  const who = row.to.slice(0, 6).join(', ') + (row.to.length > 6 ? ' …' : '')
  row.parts = [who, ...(row.to.length === 1 ? [`${counted(row.events, 'event')} so far`] : []), ['up to ', cursorOf(row)]]
}

export function renderTimeline() {
  const { published, happenings, since, total, edges } = shown.timeline
  const connections = shown.connections?.connections ?? []
  const wanted = $('by-stream').value
  const oldest = published.length === ITEMS ? published.at(-1).time : '' // of the listed ones, when there may be more
  const rest = oldest ? [{ kind: 'rest', at: oldest, stream: '', key: 'rest', title: 'Earlier events', parts: ['not shown'] }] : []
  const rows = [...published.map(stored), ...happenings.map(happened), ...connections.filter((c) => c.sent).map(sentRow), ...rest]
    .filter((row) => !wanted || row.stream === wanted || row.stream === '')
  // A delivery is later than its publish, within the same moment too.
  const rank = { sent: 0, end: 1, gap: 2, resume: 3, connect: 4, mark: 5, publish: 6, rest: 7 }
  const moment = (text) => text.replace(/(?:\.(\d+))?Z$/, (_, fraction = '') => '.' + fraction.padEnd(9, '0'))
  for (const row of rows) row.moment = moment(row.at)
  // The times of deliveries have milliseconds, those of the log nanoseconds.
  const later = (a, b, digits) => (a.slice(0, digits) < b.slice(0, digits) ? 1 : a.slice(0, digits) > b.slice(0, digits) ? -1 : 0)
  rows.sort((a, b) => later(a.moment, b.moment, 23) || (rank[a.kind] ?? 8) - (rank[b.kind] ?? 8) || later(a.moment, b.moment))
  const list = together(rows)
  for (const row of list) {
    if (row.kind === 'publish') publishedText(row, connections)
    if (row.kind === 'sent') sentText(row)
  }
  const hint = []
  if (total > happenings.length) hint.push(`the newest ${number(happenings.length)} of ${number(total)} connects, resumes and ends`)
  if (oldest) hint.push(`the newest ${number(published.length)} published`)
  // A list that was cut off is complete only since its oldest entry, which is the last one.
  const complete = [since, oldest, total > happenings.length ? happenings.at(-1).time : '']
  if (since) hint.push(`complete since ${clock(complete.sort((a, b) => later(moment(a), moment(b)))[0])}`)
  setText($('timeline-hint'), silent(edges) || hint.join(' · '))
  $('no-timeline').hidden = list.length > 0
  $('timeline').hidden = list.length === 0
  keyed($('timeline'), list, (row) => row.key, buildRow, updateRow)
}

export function buildRow(row) {
  const li = el('li', `row ${row.kind}`)
  li.dataset.kind = row.kind
  li.title_ = el('b', 'what')
  li.text_ = el('span', 'text')
  li.time_ = el('time')
  li.append(li.title_)
  if (row.session) {
    const link = el('a', 'name', row.session)
    link.href = '#session=' + encodeURIComponent(row.session)
    li.append(link)
  }
  const stream = el('span', 'stream' + (row.stream ? '' : ' whole'), row.stream || 'all streams')
  stream.title = row.stream
  li.append(stream, li.text_, li.time_)
  return li
}

export function updateRow(li, row) {
  setText(li.title_, row.title)
  setParts(li.text_, row.parts)
  setText(li.time_, clock(row.at))
  setAttribute(li.time_, 'datetime', row.at)
}
