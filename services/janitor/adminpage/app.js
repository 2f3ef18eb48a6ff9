// The admin page: it polls the janitor every two seconds, and shows the changes. Its
// closes are requests to ingest: the page belongs at the address that serves the whole API.

import { $, clock, confirmEnd, el, hideProblem, number, setText, showIfServed, showProblem, tokenIn } from './base.js'
import { age, bytes, counted, draw, duration, exact, fill, keyed, level, now, setAttribute, setServerTime, short } from './dom.js'
import { ITEMS, buildRow, clearSession, gapParts, onEnding, renderTimeline, showSession, silent, updateRow } from './session.js'

const EVERY = 2000 // ms
const PAGE = 50 // sessions
const TREND = 150 // samples, of five minutes
const RATE = 5 // of these, for the rate
const LAPSE = 60000 // ms between two samples; longer pauses restart the trends

let token = ''
let paused = false
let selected = '' // the shown session; empty: the overview
let after = '' // the start of the page of sessions
let next = '' // the start of the page after it
let trail = [] // the starts of the pages before it
let list = null // the page
let held = true // false while another page is requested; else its order stays while the user points at it
let hovered = false
let samples = [] // {at, clients, stored, rate}
let round = 0 // counts the requests: the answer to an earlier one is dropped
let timer = 0

// ---- Requests ------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, code, detail) {
    super(detail)
    this.status = status
    this.code = code
  }
}

async function request(method, path) {
  let res, text
  try {
    res = await fetch(path, {
      method, headers: token ? { Authorization: `Bearer ${token}` } : {}, cache: 'no-store', signal: AbortSignal.timeout(15000),
    })
    text = await res.text()
  } catch {
    throw new Refused(0, 'no_answer', `${method} ${path} got no answer.`)
  }
  setServerTime(res.headers.get('Date'))
  let body = null
  try {
    body = JSON.parse(text, exact)
  } catch {
    // A proxy's own text, or none.
  }
  if (!res.ok) throw new Refused(res.status, String(body?.code ?? `http_${res.status}`), String(body?.detail ?? body?.title ?? `The server answered ${res.status} without a reason.`))
  // Any other answer is a proxy's, its sign-in page for example.
  if (method === 'DELETE' ? res.status !== 204 : body === null) throw new Refused(res.status, `http_${res.status}`, `${method} ${path} was answered ${res.status}, but not by Rejoin.`)
  return body
}

const get = (path) => request('GET', path)
const pathOf = (name) => '/v1/sessions/' + encodeURIComponent(name)

// ---- The state of the page ---------------------------------------------------------------

function setState(state, text, detail = '') {
  $('state-line').dataset.state = state
  setText($('state'), text)
  setText($('detail'), detail)
}

function failed({ status, message }) {
  const show = (state, text, detail) => setState(state, text, [detail, known() && 'The shown data is outdated.'].filter(Boolean).join(' '))
  if (status === 401 || status === 403) {
    $('token-form').hidden = false
    if (status === 403) return show('cut', 'not allowed', 'This token does not grant admin.')
    return show('cut', token ? 'token refused' : 'token needed', token ? 'It is not a token of this installation, or has expired.' : '')
  }
  if (status >= 502 && status <= 504) return show('waiting', 'not ready', message)
  show('cut', status === 0 ? 'no answer' : 'failed', message)
}

const known = () => $('page').dataset.known === 'true'

// ---- Polling --------------------------------------------------------------------------

async function refresh() {
  clearTimeout(timer)
  const mine = ++round
  try {
    const name = selected
    const [page, limits, gaps, session] = await Promise.all([get(listPath()), get('/v1/limits'), get('/v1/gaps?limit=100'), askSession(name)])
    if (mine !== round) return
    const focused = document.activeElement
    list = page
    renderCounts(limits, gaps)
    renderSettings(limits)
    renderList()
    held = true
    renderNear(limits)
    renderGaps(gaps)
    if (name) showSession(session)
    $('page').dataset.known = 'true'
    $('token-form').hidden = true
    $('token').value = ''
    handFocus(focused)
    if (paused) setState('idle', 'paused')
    else setState('live', 'live', silent(gaps.edges))
  } catch (e) {
    if (mine !== round) return
    failed(e)
  }
  if (!paused && !document.hidden) timer = setTimeout(refresh, EVERY)
}

// handFocus moves the focus from an element that cannot have it any more; the browser would
// restart at the top of the page.
function handFocus(from) {
  if (from.isConnected && !from.disabled && !from.closest('[hidden]')) return
  const to = from.closest('.pager') ? [$('previous'), $('next'), $('main')] : [$('main')]
  to.find((at) => !at.disabled).focus({ preventScroll: true })
}

// askSession requests a session. All its parts are null when it does not exist, or its name is
// not valid.
async function askSession(name) {
  if (!name) return null
  const at = pathOf(name)
  const known = (path) => get(path).catch((e) => (e.status === 404 || e.code === 'invalid_name' ? null : Promise.reject(e)))
  const [detail, connections, timeline] = await Promise.all([
    known(at), known(`${at}/connections?limit=${ITEMS}`), known(`${at}/timeline?limit=${ITEMS}`),
  ])
  return { detail, connections, timeline }
}

function listPath() {
  const query = new URLSearchParams({ limit: PAGE, clients: 'true' })
  const contains = $('filter').value.trim()
  if (contains) query.set('contains', contains)
  if ($('sort').value) query.set('sort', $('sort').value)
  if ($('by-state').value) query.set('state', $('by-state').value)
  if (after) query.set('after', after)
  return '/v1/sessions?' + query
}

// ---- Overview --------------------------------------------------------------------------

function count(id, text, some) {
  setText($('count-' + id), text)
  $('count-' + id).toggleAttribute('data-some', some)
}

function renderCounts({ retained, total, stored }, gaps) {
  const { edges } = gaps
  sample(stored, gaps.clients)
  count('clients', edges.answered > 0 ? short(gaps.clients) : '–', false)
  count('edges', edges.silent > 0 ? `${edges.answered} of ${edges.answered + edges.silent}` : String(edges.answered), edges.silent > 0 || edges.answered === 0)
  count('sessions', short(retained.sessions), false)
  count('events', short(retained.events), false)
  count('bytes', bytes(retained.bytes), false)
  count('near', short(total), total > 0)
  count('gaps', edges.answered > 0 ? short(gaps.total) : '–', gaps.total > 0)
}

// sample adds to the trends. The rate is over the last ten seconds: over two it would jump. The
// trends restart after a pause without requests, by Date: performance.now may stand still
// while the machine sleeps.
function sample(stored, clients) {
  const last = samples.at(-1)
  const added = { at: Date.now(), stored, clients, rate: 0 }
  if (last && !(added.at > last.at && added.at - last.at < LAPSE)) samples = []
  const before = samples.at(-RATE) ?? samples[0]
  if (before) added.rate = Math.max(0, (1000 * (stored - before.stored)) / (added.at - before.at))
  samples = [...samples, added].slice(-TREND)
  count('rate', before ? short(added.rate < 10 ? Math.round(added.rate * 10) / 10 : Math.round(added.rate)) : '–', false)
  draw($('spark-rate'), samples.slice(1).map((s) => s.rate))
  draw($('spark-clients'), samples.map((s) => s.clients))
}

function renderSettings({ limits, streamEvents, maxAge, logBytes, closedGrace, idleAfter, version }) {
  const session = [
    limits.events && `${number(limits.events)} events`, limits.bytes && bytes(limits.bytes), limits.streams && `${number(limits.streams)} open streams`,
  ].filter(Boolean)
  const parts = [
    `Retention: ${maxAge ? duration(maxAge) : 'no limit of age'}`,
    session.length > 0 && `per session ${session.join(', ')}`,
    streamEvents && `per stream ${number(streamEvents)} events`,
    logBytes && `log ${bytes(logBytes)}`,
    `closed sessions ${duration(closedGrace)}`,
    idleAfter && `idle sessions close after ${duration(idleAfter)}`,
    `version ${/^[0-9a-f]{40}$/.test(version) ? version.slice(0, 12) : version}`,
  ]
  setText($('settings'), parts.filter(Boolean).join(' · '))
}

function renderNear({ sessions, total }) {
  setText($('near-hint'), total > sessions.length ? `the closest ${number(sessions.length)} of ${number(total)}` : '')
  $('no-near').hidden = total > 0
  keyed($('near'), sessions, (s) => s.session, (s) => {
    const bar = el('span', 'fill')
    const text = el('span', 'used')
    const li = el('li', '', linkTo(s.session), el('span', 'track', bar), text)
    li.bar_ = bar
    li.used_ = text
    return li
  }, (li, s) => {
    fill(li.bar_, s.share)
    setText(li.used_, `${Math.floor(s.share * 100)} % of its ${s.limit}`)
    li.dataset.level = s.share >= 1 ? 'full' : 'near'
  })
}

function linkTo(session) {
  const link = el('a', 'name', session)
  link.href = '#session=' + encodeURIComponent(session)
  link.title = session
  return link
}

function renderGaps({ gaps, total, reasons, since, edges }) {
  const hint = []
  if (total > gaps.length) hint.push(`the newest ${number(gaps.length)} of ${number(total)}`)
  if (since && now() - Date.parse(since) < 3590000) hint.push(`complete since ${clock(since)}`)
  setText($('gaps-hint'), silent(edges) || hint.join(' · '))
  $('no-gaps').hidden = total > 0 || edges.answered === 0
  $('reasons').hidden = total === 0
  const most = Math.max(1, ...Object.values(reasons))
  const list = Object.entries(reasons).sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]))
  keyed($('reasons'), list, ([reason]) => reason, ([reason]) => {
    const bar = el('span', 'fill')
    const li = el('li', '', el('span', 'reason', reason.replaceAll('_', ' ')), el('span', 'track', bar), el('span', 'num'))
    li.bar_ = bar
    return li
  }, (li, [, n]) => {
    fill(li.bar_, n / most)
    setText(li.lastElementChild, number(n))
  })
  const rows = gaps.map((g) => ({
    kind: 'gap', at: g.time, session: g.session, stream: g.stream ?? '', key: [g.edge, g.time, g.session, g.stream, g.connection].join('/'),
    title: String(g.reason).replaceAll('_', ' '), parts: gapParts(g),
  }))
  keyed($('gaps'), rows, (row) => row.key, buildRow, updateRow)
}

// ---- Sessions --------------------------------------------------------------------------

// renderList shows the page of sessions. While the user points at a row, or has the focus on
// one, rows are updated in place, and none is added, removed or moved; rows that have left the
// page are marked.
function renderList() {
  const stays = held && pointed()
  next = list.next ?? ''
  $('first').disabled = $('previous').disabled = trail.length === 0
  $('next').disabled = next === ''
  const { sessions, total } = list
  if (stays) {
    const fresh = new Map(sessions.map((s) => [s.session, s]))
    for (const row of $('sessions').children) {
      if (fresh.has(row.key)) updateSession(row, fresh.get(row.key))
      else row.classList.add('past')
    }
  } else keyed($('sessions'), sessions, (s) => s.session, buildSession, updateSession)
  const first = trail.length * PAGE
  const past = $('sessions').querySelectorAll('.past').length
  setText($('list-page'), (sessions.length > 0 ? `${number(first + 1)}–${number(first + sessions.length)} of ${number(total)}` : '') +
    (stays ? ' · order held' : '') + (past > 0 ? `, ${counted(past, 'outdated row')}` : ''))
  const filtered = $('filter').value.trim() !== '' || $('by-state').value !== '' || after !== ''
  setText($('no-sessions'), filtered ? 'No sessions match.' : 'No sessions yet. The first message creates one.')
  $('no-sessions').hidden = sessions.length > 0
  $('sessions-table').hidden = sessions.length === 0
}

const pointed = () => hovered || $('sessions').contains(document.activeElement)

// release orders the list again; a requested page has its own order.
const release = () => held && renderList()

function buildSession(s) {
  const row = el('tr')
  row.link_ = linkTo(s.session)
  row.state_ = el('span', 'flag')
  const name = el('th', '', row.state_, row.link_)
  name.scope = 'row'
  row.append(name, el('td', 'num'), el('td', 'num'), el('td', 'num'), el('td'))
  return row
}

function updateSession(row, s) {
  row.classList.remove('past')
  setText(row.state_, s.state === 'open' ? '' : s.state)
  setAttribute(row.link_, 'aria-current', s.session === selected ? 'true' : null)
  const [, events, size, clients, active] = row.children
  use(events, s.events, s.limits.events, short)
  use(size, s.bytes, s.limits.bytes, bytes)
  setText(clients, s.clients > 0 ? number(s.clients) : '')
  setText(active, s.activity ? age(s.activity) : '')
  setAttribute(active, 'title', s.activity ? clock(s.activity) : null)
}

function use(cell, has, limit, show) {
  setText(cell, show(has))
  setAttribute(cell, 'data-level', level(has, limit))
  setAttribute(cell, 'title', limit === undefined ? null : `of ${show(limit)}`)
}

// select shows the session that the address names, or the overview.
function select() {
  const [, encoded = ''] = /^#session=(.+)$/.exec(location.hash) ?? []
  let name = ''
  try {
    name = decodeURIComponent(encoded)
  } catch {
    // Not a valid address: the overview.
  }
  const changed = name !== selected
  selected = name
  $('overview').hidden = name !== ''
  $('session-view').hidden = name === ''
  document.title = name ? `${name} · Rejoin admin` : 'Rejoin admin'
  for (const row of $('sessions').children) setAttribute(row.link_, 'aria-current', row.key === selected ? 'true' : null)
  if (!changed) return
  if (name) clearSession(name)
  $('main').focus({ preventScroll: true })
  if (matchMedia('(max-width: 999px)').matches) $('main').scrollIntoView()
  refresh()
}

// ---- Close and clear ---------------------------------------------------------------------

async function end({ stream = '', clear = false }) {
  const session = selected
  const what = stream ? 'stream' : 'session'
  if (!(await confirmEnd(session, stream, clear))) return
  setText($('ended'), '')
  try {
    await request('DELETE', pathOf(session) + (stream ? '/streams/' + encodeURIComponent(stream) : '') + (clear ? '?clear=true' : ''))
    hideProblem()
    if (session === selected) setText($('ended'), `The ${what} is closed${clear ? ' and cleared' : ''}.`)
  } catch (e) {
    const owners = e.code === 'method_not_allowed' || e.status === 404
    showProblem({ code: e.code, detail: e.message + (owners ? " Only the session's owner can close and clear, at the address that serves the whole API." : '') })
  }
  refresh()
}

// ---- Start ---------------------------------------------------------------------------------

// turn shows another page of sessions.
function turn(to, before) {
  after = to
  trail = before
  held = false
  setText($('list-page'), 'loading …')
  $('sessions-scroll').scrollTop = 0
  refresh()
}

const reload = () => turn('', [])

let typing = 0
$('filter').addEventListener('input', () => {
  clearTimeout(typing)
  typing = setTimeout(reload, 200)
})
$('filter-form').addEventListener('submit', (e) => {
  e.preventDefault()
  reload()
})
for (const id of ['sort', 'by-state']) $(id).addEventListener('change', reload)
$('first').addEventListener('click', reload)
$('previous').addEventListener('click', () => held && turn(trail.at(-1), trail.slice(0, -1)))
$('next').addEventListener('click', () => held && turn(next, [...trail, after]))
$('sessions').addEventListener('pointerenter', (e) => {
  hovered = e.pointerType !== 'touch' // a finger stays over the tapped row
})
$('sessions').addEventListener('pointerleave', () => {
  hovered = false
  release()
})
$('sessions').addEventListener('focusout', () => setTimeout(release)) // once the focus has moved
$('by-stream').addEventListener('change', renderTimeline)
$('pause').addEventListener('click', () => {
  paused = !paused
  setText($('pause'), paused ? 'Resume' : 'Pause')
  refresh()
})
$('token-form').addEventListener('submit', (e) => {
  e.preventDefault()
  token = tokenIn($('token'))
  refresh()
})
$('close').addEventListener('click', () => end({}))
$('clear').addEventListener('click', () => end({ clear: true }))
onEnding(end)
document.addEventListener('visibilitychange', () => {
  if (!document.hidden && !paused) refresh()
})
window.addEventListener('hashchange', select)
$('skip').addEventListener('click', (e) => {
  e.preventDefault() // the address names the shown session
  $('main').scrollIntoView()
  $('main').focus({ preventScroll: true })
})

showIfServed($('to-playground'))
select()
if (selected === '') refresh()
