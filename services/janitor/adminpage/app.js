// The admin page: it asks the janitor every two seconds, and shows what changed. What it
// closes, ingest closes: the page belongs at the address that serves the whole API.

import { $, el, hideProblem, number, setText, showProblem } from './base.js'
import { ago, bars, bytes, counted, holdings, keyed, setAttribute, short } from './dom.js'
import { buildRow, clearSession, gapText, missingSession, onEnding, renderTimeline, showSession, silent, updateRow } from './session.js'

const EVERY = 2000 // ms
const PAGE = 50 // sessions
const ITEMS = 200 // connections, happenings and events of a session

let token = ''
let paused = false
let selected = '' // the session that is shown; empty: the overview
let after = '' // where the page of sessions begins
let next = '' // where the one behind it does
let round = 0 // counts what was asked for: an answer to something else is thrown away
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
  let res
  try {
    res = await fetch(path, {
      method, headers: token ? { Authorization: `Bearer ${token}` } : {}, cache: 'no-store', signal: AbortSignal.timeout(15000),
    })
  } catch {
    throw new Refused(0, 'no_answer', `${method} ${path} got no answer.`)
  }
  const text = await res.text().catch(() => '')
  let body = {}
  try {
    body = JSON.parse(text) ?? {}
  } catch {
    // A proxy's own words, or nothing.
  }
  if (!res.ok) throw new Refused(res.status, String(body.code ?? `http_${res.status}`), String(body.detail ?? body.title ?? 'The server gave no reason.'))
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

function failed({ status, code, message }) {
  if (status === 401 || status === 403) {
    $('token-form').hidden = false
    return setState('cut', status === 401 ? 'token needed' : 'not allowed', status === 401 ? '' : 'This token does not grant admin.')
  }
  if (code === 'unavailable' || status === 502 || status === 504) return setState('waiting', 'not ready', message)
  setState('cut', 'no answer', `${message} What is shown is from before.`)
}

// ---- Asking ---------------------------------------------------------------------------

async function refresh() {
  clearTimeout(timer)
  const mine = ++round
  try {
    const name = selected
    const [list, limits, gaps, session] = await Promise.all([get(listPath()), get('/v1/limits'), get('/v1/gaps?limit=100'), askSession(name)])
    if (mine !== round) return
    renderCounts(limits, gaps)
    renderList(list)
    renderNear(limits)
    renderGaps(gaps)
    if (name) session.missing ? missingSession(session.missing) : showSession(session)
    $('token-form').hidden = true
    setState('live', 'live', whatToKnow(limits, gaps.edges))
  } catch (e) {
    if (mine !== round) return
    failed(e)
  }
  if (paused) setState('idle', 'paused')
  else if (!document.hidden) timer = setTimeout(refresh, EVERY)
}

async function askSession(name) {
  if (!name) return {}
  const at = pathOf(name)
  const [detail, connections, timeline] = await Promise.all([
    get(at).catch((e) => (e.status === 404 ? { missing: e.message } : Promise.reject(e))),
    get(`${at}/connections?limit=${ITEMS}`), get(`${at}/timeline?limit=${ITEMS}`),
  ])
  if (!detail.missing) return { detail, connections, timeline }
  showSession({ connections, timeline }) // who waits for a session that is not there yet
  return { missing: detail.missing }
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

function whatToKnow(limits, edges) {
  const parts = []
  if (!limits.acting) parts.push('This janitor stands by; another one acts.')
  if (silent(edges)) parts.push(silent(edges))
  return parts.join(' ')
}

// ---- Overview --------------------------------------------------------------------------

function count(id, text, some) {
  setText($('count-' + id), text)
  $('count-' + id).toggleAttribute('data-some', some)
}

function renderCounts({ retained, total }, gaps) {
  const { edges } = gaps
  count('clients', edges.answered > 0 ? short(gaps.clients) : '–', false)
  count('edges', edges.silent > 0 ? `${edges.answered} of ${edges.answered + edges.silent}` : String(edges.answered), edges.silent > 0 || edges.answered === 0)
  count('sessions', short(retained.sessions), false)
  count('events', short(retained.events), false)
  count('bytes', bytes(retained.bytes), false)
  count('near', short(total), total > 0)
  count('gaps', edges.answered > 0 ? short(gaps.total) : '–', gaps.total > 0)
}

function renderNear({ sessions, total }) {
  setText($('near-hint'), total > sessions.length ? `the closest ${number(sessions.length)} of ${number(total)}` : '')
  $('no-near').hidden = total > 0
  keyed($('near'), sessions, (s) => s.session, buildSession, updateNear)
}

function updateNear(li, s) {
  setText(li.state_, `${Math.floor(s.share * 100)} % of its ${s.limit}`)
  li.state_.dataset.level = s.share >= 1 ? 'bad' : 'near'
  bars(li.bars_, holdings(s))
}

function renderGaps({ gaps, total, reasons, since, edges }) {
  const hint = []
  if (total > gaps.length) hint.push(`the newest ${number(gaps.length)} of ${number(total)}`)
  if (since && Date.now() - Date.parse(since) < 3590000) hint.push(`edges remember since ${new Date(since).toLocaleTimeString()}`)
  setText($('gaps-hint'), silent(edges) || hint.join(' · '))
  $('no-gaps').hidden = total > 0 || edges.answered === 0
  $('reasons').hidden = total === 0
  const most = Math.max(1, ...Object.values(reasons))
  const list = Object.entries(reasons).sort((a, b) => b[1] - a[1] || a[0].localeCompare(b[0]))
  keyed($('reasons'), list, ([reason]) => reason, ([reason]) => {
    const fill = el('span', 'fill')
    const li = el('li', '', el('span', 'reason', reason.replaceAll('_', ' ')), el('span', 'track', fill), el('span', 'num'))
    li.fill_ = fill
    return li
  }, (li, [, n]) => {
    li.fill_.style.inlineSize = `${Math.max(1, (100 * n) / most)}%`
    setText(li.lastElementChild, number(n))
  })
  const rows = gaps.map((g) => ({
    kind: 'gap', at: g.time, session: g.session, stream: g.stream ?? '', key: [g.edge, g.time, g.session, g.stream, g.connection].join('/'),
    title: String(g.reason).replaceAll('_', ' '), text: gapText(g),
  }))
  keyed($('gaps'), rows, (row) => row.key, buildRow, updateRow)
}

// ---- Sessions --------------------------------------------------------------------------

function renderList({ sessions, next: behind = '' }) {
  next = behind
  $('first').disabled = after === ''
  $('next').disabled = next === ''
  setText($('list-page'), sessions.length > 0 ? counted(sessions.length, 'session') + (next || after ? ' on this page' : '') : '')
  const filtered = $('filter').value.trim() !== '' || $('by-state').value !== '' || after !== ''
  setText($('no-sessions'), filtered ? 'No session is like that.' : 'No session yet. Publish a message, and it is here.')
  $('no-sessions').hidden = sessions.length > 0
  keyed($('sessions'), sessions, (s) => s.session, buildSession, updateSession)
}

// buildSession makes a row of a list of sessions.
function buildSession(s) {
  const li = el('li')
  li.name_ = el('span', 'name', s.session)
  li.state_ = el('span', 'flag')
  li.clients_ = el('span', 'clients')
  li.bars_ = el('span', 'bars')
  li.link_ = el('a', 'session', el('span', 'session-head', li.name_, li.state_, li.clients_), li.bars_)
  li.link_.href = '#session=' + encodeURIComponent(s.session)
  li.append(li.link_)
  return li
}

function updateSession(li, s) {
  setText(li.state_, s.state === 'open' ? '' : s.state)
  setText(li.clients_, [s.clients > 0 ? counted(s.clients, 'client') : '', s.activity ? ago(s.activity) : ''].filter(Boolean).join(' · '))
  setAttribute(li.link_, 'aria-current', s.session === selected ? 'true' : null)
  bars(li.bars_, holdings(s))
}

// select shows the session that the address names, or the overview.
function select() {
  const [, encoded = ''] = /^#session=(.+)$/.exec(location.hash) ?? []
  let name = ''
  try {
    name = decodeURIComponent(encoded)
  } catch {
    // Not an address of ours: the overview.
  }
  const changed = name !== selected
  selected = name
  $('overview').hidden = name !== ''
  $('session-view').hidden = name === ''
  document.title = name ? `${name} · Rejoin admin` : 'Rejoin admin'
  for (const li of $('sessions').children) setAttribute(li.link_, 'aria-current', li.key === selected ? 'true' : null)
  if (!changed) return
  if (name) clearSession(name)
  $('main').focus({ preventScroll: true })
  if (matchMedia('(max-width: 999px)').matches) $('main').scrollIntoView()
  refresh()
}

// ---- Close and clear ---------------------------------------------------------------------

// ask has somebody confirm; the answer is no when the dialog is closed otherwise.
function ask(title, text, name, yes) {
  setText($('confirm-title'), title)
  setText($('confirm-text'), text)
  setText($('confirm-name'), name)
  setText($('confirm-yes'), yes)
  const dialog = $('confirm')
  dialog.returnValue = 'no'
  dialog.showModal()
  return new Promise((done) => dialog.addEventListener('close', () => done(dialog.returnValue === 'yes'), { once: true }))
}

async function end({ stream = '', clear = false }) {
  const session = selected
  const what = stream ? 'stream' : 'session'
  const sure = await ask(
    `${clear ? 'Close and clear' : 'Close'} this ${what}?`,
    clear ? 'It takes no more messages, and what is stored is deleted. There is no way back.' : 'It takes no more messages. There is no way back.',
    stream ? `${session} / ${stream}` : session, clear ? 'Close and clear' : 'Close',
  )
  if (!sure) return
  setText($('ended'), '')
  try {
    await request('DELETE', pathOf(session) + (stream ? '/streams/' + encodeURIComponent(stream) : '') + (clear ? '?clear=true' : ''))
    hideProblem()
    setText($('ended'), `The ${what} is closed${clear ? ' and cleared' : ''}.`)
  } catch (e) {
    const owners = e.code === 'method_not_allowed' || e.status === 404
    showProblem({ code: e.code, detail: e.message + (owners ? " Close and clear are for the session's owner, at the address that serves the whole API." : '') })
  }
  refresh()
}

// ---- Start ---------------------------------------------------------------------------------

function reload() {
  after = ''
  refresh()
}

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
$('next').addEventListener('click', () => {
  after = next
  refresh()
  $('sessions').scrollTop = 0
})
$('by-stream').addEventListener('change', renderTimeline)
$('pause').addEventListener('click', () => {
  paused = !paused
  $('pause').setAttribute('aria-pressed', String(paused))
  setText($('pause'), paused ? 'Go on' : 'Pause')
  refresh()
})
$('token-form').addEventListener('submit', (e) => {
  e.preventDefault()
  token = $('token').value.trim()
  $('token').value = ''
  refresh()
})
$('close').addEventListener('click', () => end({}))
$('clear').addEventListener('click', () => end({ clear: true }))
onEnding(end)
document.addEventListener('visibilitychange', () => {
  if (!document.hidden && !paused) refresh()
})
window.addEventListener('hashchange', select)

select()
if (selected === '') refresh()
