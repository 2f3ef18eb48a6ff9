// The playground: one subscription of the JavaScript client, one cursor, and a
// check that no event is lost, repeated or out of order.

import { $, clock, confirmEnd, el, hideProblem, number, setText, showIfServed, showProblem, tokenIn } from './base.js'
import { publish as store, subscribe } from '/rejoin.js'

const VIEW_ROWS = 500 // rows kept in the list
const REMEMBERED = 20000 // sequences kept to tell a duplicate from a late event
const SHOWN_CHARS = 20000 // of one message; a message may have 1 MiB
const LAID_OUT = 1000 // tokens of one message; more of them, in many messages, stop the browser
const AUTO_PERIOD = 100 // ms

// ---- Event IDs: <stream>_<tag>_<sequence>[.<n>], read from the right --------

function parseID(id) {
  const m = /^(.*_[0-9a-z]{7}_)(\d+)(\.\d+)?$/.exec(id)
  return m && { head: m[1], sequence: m[2], tail: m[3] ?? '', number: BigInt(m[2]) }
}

// Order judges each event by its sequence. `delivered` is the cursor up to which
// all events had been delivered before this page began to follow, so after a reload
// an event at or below it is a duplicate although this page never received it.
class Order {
  constructor(deliveredID) {
    this.reset(deliveredID)
  }

  reset(deliveredID) {
    this.delivered = parseID(deliveredID)?.number ?? -1n
    this.last = this.delivered
    this.seen = new Set()
  }

  judge(sequence) {
    if (sequence > this.last) {
      this.last = sequence
    } else if (sequence === this.last || sequence <= this.delivered || this.seen.has(sequence)) {
      return 'duplicate'
    } else {
      this.remember(sequence)
      return 'out of order'
    }
    this.remember(sequence)
    return 'new'
  }

  remember(sequence) {
    this.seen.add(sequence)
    if (this.seen.size > REMEMBERED) {
      const [oldest] = this.seen
      this.seen.delete(oldest)
      if (oldest > this.delivered) this.delivered = oldest
    }
  }

  // All events up to a cursor have been delivered.
  passed(sequence) {
    if (sequence > this.last) this.last = sequence
  }
}

// ---- JSON, laid out without changing a byte of it ----------------------------
// JSON.stringify(JSON.parse(x)) would round large numbers and drop repeated
// keys, so the tokens are kept as they were written.

function parseJSON(text) {
  JSON.parse(text) // throws on other text; below, the text is known to be JSON
  const tokens = text.match(/"[^"\\]*(?:\\.[^"\\]*)*"|[{}[\],:]|[^\s{}[\],:"]+/g)
  if (tokens.length > LAID_OUT) throw new RangeError('too many tokens')
  let at = 0
  const value = () => {
    const token = tokens[at++]
    if (token !== '{' && token !== '[') {
      return { text: token, kind: token[0] === '"' ? 'str' : /[-\d]/.test(token[0]) ? 'num' : 'word', width: token.length }
    }
    const node = { open: token, close: token === '{' ? '}' : ']', items: [], width: 4 }
    while (tokens[at] !== node.close) {
      if (tokens[at] === ',') at++
      let key = null
      if (token === '{') {
        key = tokens[at]
        at += 2 // the key and its colon
      }
      const item = { key, value: value() }
      node.items.push(item)
      node.width += item.value.width + 2 + (key === null ? 0 : key.length + 2)
    }
    at++
    return node
  }
  return value()
}

const span = (className, text) => el('span', className, text)

// layJSON appends a node; one that fits on a line stays on one.
function layJSON(parent, node, line = 64, indent = 0) {
  if (!node.items) {
    parent.append(span(node.kind, node.text))
    return
  }
  if (node.items.length === 0) {
    parent.append(node.open + node.close)
    return
  }
  const flat = indent + node.width <= line
  const gap = flat ? ' ' : '\n' + ' '.repeat(indent + 2)
  parent.append(node.open)
  node.items.forEach((item, i) => {
    let at = parent
    if (indent === 0 && item.key === '"jsonrpc"') {
      at = span('boiler', '') // the compact list leaves it out
      parent.append(at)
    }
    at.append(gap)
    if (item.key !== null) at.append(span('key', item.key), ': ')
    layJSON(at, item.value, line, indent + 2)
    if (i < node.items.length - 1) at.append(',')
  })
  parent.append((flat ? ' ' : '\n' + ' '.repeat(indent)) + node.close)
}

// ---- The storage: a cursor for each stream -----------------------------------
// The cursor is kept twice: in localStorage, so that a new tab or a bookmark
// continues, and for this tab, so that a reload continues at this tab's cursor
// although another one is further in the same stream.

const PREFIX = 'rejoin.playground.'
const stores = [storage('sessionStorage'), storage('localStorage')]

function storage(name) {
  try {
    const s = window[name]
    s.getItem(PREFIX)
    return s
  } catch {
    return null // disabled in the browser: the page works, a reload forgets
  }
}

function recall(key) {
  for (const s of stores) {
    const value = s?.getItem(PREFIX + key)
    if (value !== null && value !== undefined) return value
  }
  return ''
}

function keep(key, value) {
  for (const s of stores) {
    try {
      if (value === '') s?.removeItem(PREFIX + key)
      else s?.setItem(PREFIX + key, value)
    } catch {
      // Full: the cursor in memory still serves this page.
    }
  }
}

function randomText(length) {
  const bytes = crypto.getRandomValues(new Uint8Array(length))
  return Array.from(bytes, (b) => '0123456789abcdefghjkmnpqrstvwxyz'[b % 32]).join('')
}

// ---- Targets -------------------------------------------------------------------

function readTarget() {
  const session = $('session').value.trim()
  const stream = $('stream').value.trim()
  const whole = $('whole').checked || stream === ''
  const path = '/v1/sessions/' + encodeURIComponent(session)
  const streamPath = path + '/streams/' + encodeURIComponent(stream)
  return {
    session, stream, whole, path, streamPath,
    eventsPath: (whole ? path : streamPath) + '/events',
    key: whole ? encodeURIComponent(session) : encodeURIComponent(session) + '/' + encodeURIComponent(stream),
    label: whole ? `${session} / all streams` : `${session} / ${stream}`,
  }
}

function writeURL() {
  const t = readTarget()
  const query = new URLSearchParams({ session: t.session, stream: t.stream })
  if ($('whole').checked) query.set('whole', '1')
  history.replaceState(null, '', '?' + query)
}

// ---- The view: data is collected at once, the page is written once a frame -----

const counts = { received: 0, resumed: 0, gaps: 0, duplicates: 0, 'out-of-order': 0 }
let pending = [] // rows that the next frame shows, oldest first, at most 2 * VIEW_ROWS
let pushed = 0 // rows since the list was last emptied
let frame = 0
let frameTimer = 0

// A tab in the background gets no frames: a slow timer keeps it right as well.
function schedule() {
  if (frame) return
  frame = requestAnimationFrame(render)
  frameTimer = setTimeout(render, 500)
}

function push(row) {
  row.at = new Date()
  pending.push(row)
  pushed++
  if (pending.length > 2 * VIEW_ROWS) pending = pending.slice(-VIEW_ROWS)
  schedule()
}

function render() {
  cancelAnimationFrame(frame)
  clearTimeout(frameTimer)
  frame = 0
  for (const [name, n] of Object.entries(counts)) {
    const el = $('count-' + name)
    setText(el, String(n))
    el.toggleAttribute('data-some', n > 0)
  }
  renderCursor()
  const list = $('events')
  if (pending.length > 0) {
    const rows = document.createDocumentFragment()
    for (const row of pending.slice(-VIEW_ROWS)) rows.prepend(buildRow(row))
    pending = []
    // A user who has scrolled down is reading: keep the scroll position.
    const reading = list.scrollTop > 0 ? list.firstElementChild : null
    const before = reading?.getBoundingClientRect().top
    list.prepend(rows)
    if (reading) list.scrollTop += reading.getBoundingClientRect().top - before
    while (list.childElementCount > VIEW_ROWS) list.lastElementChild.remove()
  }
  const dropped = pushed - list.childElementCount
  setText($('dropped'), dropped > 0 ? `newest ${list.childElementCount}; ${number(dropped)} older dropped from view` : '')
  $('nothing').hidden = list.childElementCount > 0
}

function renderCursor() {
  const id = parseID(cursor)
  $('cursor').title = cursor
  if ($('cursor').textContent === cursor && cursor !== '') return
  if (!id) setText($('cursor'), cursor || 'none')
  else $('cursor').replaceChildren(span('head', id.head), strong(id.sequence), id.tail)
}

const strong = (text) => el('b', '', text)

function buildRow(row) {
  const time = el('time', '', clock(row.at))
  time.dateTime = row.at.toISOString()
  const head = el('div', 'row-head')
  const li = el('li', 'row ' + row.kind, head)
  li.dataset.kind = row.kind
  if (row.id !== undefined) {
    li.dataset.id = row.id
    const id = parseID(row.id)
    head.append(el('code', 'id', ...(id ? [id.head, strong(id.sequence), id.tail] : [row.id || '(no id)'])))
  } else {
    head.append(span('note-text', row.text))
  }
  for (const name of ['type', 'stream', 'flag']) {
    if (row[name]) head.append(span(name, row[name]))
  }
  head.append(time)
  if (row.kind === 'gap') li.append(el('p', 'gap-text', strong(row.title), ' ' + row.text))
  if (row.kind === 'message') li.append(buildMessage(row))
  return li
}

const narrow = matchMedia('(max-width: 560px)')

function buildMessage(row) {
  const pre = el('pre')
  if (row.body.length > SHOWN_CHARS) {
    pre.textContent = row.body.slice(0, SHOWN_CHARS)
    pre.append(span('more-text', ` … ${number(row.body.length - SHOWN_CHARS)} more characters`))
    return pre
  }
  try {
    const json = parseJSON(row.body)
    const message = row.stream && json.items?.find((item) => item.key === '"message"') // of an envelope
    layJSON(pre, message ? message.value : json, narrow.matches ? 38 : 64)
  } catch {
    pre.textContent = row.body // not JSON, or too long or nested too deep to lay out
  }
  return pre
}

// ---- The connection --------------------------------------------------------------

let subscription = null // or null when none is wanted
let target = null // the current or last target of the subscription
let cursor = '' // all events up to here have been delivered to this page
let state = 'idle'
let missed = 0 // messages that this page stored in the target while it was not connected
let countdown = 0 // the timer that shows the time to the next connection
const order = new Order('')

const STATES = { idle: 'not connected', connecting: 'connecting', live: 'live', waiting: 'reconnecting', cut: 'cut', closed: 'closed' }

function setState(next, detail = '') {
  state = next
  $('state-line').dataset.state = next
  setText($('state'), STATES[next])
  setText($('detail'), detail)
  setText($('target'), target?.label ?? '')
  $('target').title = target?.label ?? ''
  document.title = `${STATES[next]} · ${target?.label ?? 'Rejoin playground'}`
  renderButtons()
}

function renderButtons() {
  const edited = target === null || readTarget().key !== target.key || readTarget().whole !== target.whole
  const focused = document.activeElement
  $('cut').disabled = subscription === null
  $('resume').disabled = !(target !== null && ['cut', 'waiting', 'idle'].includes(state))
  $('connect').disabled = subscription !== null && !edited
  setText($('connect'), subscription !== null && edited ? 'Switch' : 'Connect')
  // A disabled button loses the focus: hand it to its counterpart.
  if (focused?.disabled) {
    const next = focused === $('cut') ? $('resume') : $('cut')
    if (!next.disabled) next.focus({ preventScroll: true })
  }
}

function save(place) {
  cursor = place
  const id = parseID(place)
  if (id) order.passed(id.number)
  keep('cursor:' + target.key, place)
  schedule()
}

// follow starts on a target; a new target resets the counts.
function follow(next) {
  if (target === null || target.key !== next.key || target.whole !== next.whole) {
    target = next
    resetView()
    cursor = recall('cursor:' + target.key)
    order.reset(cursor)
  }
  open()
}

function open() {
  stop()
  keep('connected:' + target.key, '1')
  const mine = (handler) => (...what) => subscription === opened && handler(...what)
  const opened = subscribe({ session: target.session, stream: target.whole ? undefined : target.stream }, {
    types: '*', cursor, storage: { load: () => '', save: mine(save) }, token,
    onState: mine(onState), onConnect: mine(onConnect), onGap: mine(onGap), onClose: mine(onClose),
    onEvent: mine(onEvent), onRepeat: mine(onEvent),
    onExpiring: mine(({ expiresAt }) => push({ kind: 'note', text: `The token expires: the connection ends at ${new Date(expiresAt).toLocaleTimeString()}` })),
  })
  subscription = opened
  missed = 0
  setState('connecting', beginning())
}

function beginning() {
  return cursor ? 'Continuing after the saved cursor.' : 'From the oldest retained event.'
}

// stop ends the connection without notice to the server, as a network failure would.
function stop() {
  clearTimeout(countdown)
  subscription?.close()
  subscription = null
}

function cut() {
  stop()
  keep('connected:' + target.key, '')
  push({ kind: 'note', text: 'Connection cut here' })
  setState('cut', 'Publish some more, then resume: the missed events come first.')
}

function onState(next, { retryIn, error }) {
  clearTimeout(countdown)
  if (next === 'connecting' && state !== 'connecting') setState('connecting', beginning())
  if (next !== 'waiting') return
  const why = error ? `No connection: ${error.message.replace(/\.$/, '')}.` : 'The connection ended.'
  const until = Date.now() + retryIn
  const tick = () => {
    setText($('detail'), `${why} Trying again in ${Math.ceil(Math.max(0, until - Date.now()) / 1000)} s.`)
    countdown = setTimeout(tick, 250)
  }
  setState('waiting')
  tick()
}

function parse(text) {
  try {
    return JSON.parse(text) ?? {}
  } catch {
    return {}
  }
}

function onConnect(data) {
  accepted()
  const parts = []
  if (data.resumed) {
    counts.resumed++
    parts.push('Resumed')
  } else {
    parts.push('Connected')
  }
  if (data.exists === false) parts.push('no events yet')
  const oldest = data.oldest && parseID(data.oldest)
  if (oldest) parts.push(`oldest retained ${oldest.sequence}`)
  if (data.retainedFor > 0) parts.push(`kept for ${duration(data.retainedFor)}`)
  push({ kind: 'note', text: parts.join(' · ') })
  setState('live', data.retainedFor > 0
    ? `Events are kept for ${duration(data.retainedFor)}, the oldest for less when there are too many.`
    : 'Events are kept until a size limit is reached.')
}

function duration(seconds) {
  if (seconds >= 7200 || seconds === 3600) return `${+(seconds / 3600).toFixed(1)} h`
  return seconds >= 120 ? `${Math.round(seconds / 60)} min` : `${seconds} s`
}

const GAPS = {
  unknown: () => 'The event ID is not one of this stream: it is from an earlier session of the same name, from a deleted log, or from elsewhere.',
  expired: (sure) => `Events after your cursor ${sure ? 'have expired' : 'may have expired'}.`,
  trimmed: (sure) => `Events after your cursor ${sure ? 'were' : 'may have been'} trimmed, because a size limit was reached.`,
  cleared: (sure) => `Events after your cursor ${sure ? 'were' : 'may have been'} deleted by a clear.`,
  rolled_back: () => 'The log ends before your cursor: the server lost its newest events. Sequences may repeat, with other content.',
  damaged: () => 'The log has lost entries after your cursor, for example because a file was damaged. Events of this stream may be among them.',
}

function onGap(data) {
  const reason = String(data.reason)
  const sure = data.certain !== false
  const parts = [Object.hasOwn(GAPS, reason) ? GAPS[reason](sure) : 'Events are missing.']
  if (!sure) parts.push('This is not certain at the moment.')
  if (data.requested) parts.push(`The client requested events after ${data.requested}.`)
  parts.push(data.resumesAt ? `The stream resumes at ${data.resumesAt}.` : 'The stream resumes with the next event.')
  counts.gaps++
  push({
    kind: 'gap', id: data.id, type: 'gap', stream: target.whole ? data.stream : '',
    title: `Gap: ${reason.replaceAll('_', ' ')}, ${sure ? 'certain' : 'not certain'}.`, text: parts.join(' '),
  })
  // Both may legitimately move back: the sequences seen so far are void now.
  if (reason === 'rolled_back' || reason === 'unknown') order.reset(data.id)
}

function onClose({ reason, error }) {
  stop()
  if (reason === 'closed') {
    push({ kind: 'note', text: 'Closed: all events have been delivered' })
    stopAuto()
    return setState('closed', 'It is closed, and all its events have been delivered.')
  }
  const problem = { code: error.code ?? reason, detail: error.message, status: error.status }
  showProblem(problem)
  setState('cut', refusal(problem))
}

function onEvent(event) {
  counts.received++
  const row = { kind: 'message', id: event.id, type: event.type, stream: target.whole ? event.stream : '', body: event.data }
  const id = parseID(event.id)
  const verdict = id ? order.judge(id.number) : 'new'
  if (verdict !== 'new') {
    row.flag = verdict // and the cursor does not move back
    counts[verdict === 'duplicate' ? 'duplicates' : 'out-of-order']++
  }
  push(row)
}

function resetView() {
  for (const name of Object.keys(counts)) counts[name] = 0
  emptyList()
}

function emptyList() {
  pending = []
  pushed = 0
  $('events').replaceChildren()
  schedule()
}

// ---- Requests ----------------------------------------------------------------------

async function readProblem(res) {
  const body = parse(await res.text().catch(() => ''))
  return {
    code: body.code ?? `http_${res.status}`,
    detail: body.detail ?? body.title ?? (res.ok ? 'It was answered, but not by Rejoin.' : res.statusText || 'The server gave no reason.'),
    status: res.status,
  }
}

function final(status) {
  return status >= 400 && status < 500 && status !== 408 && status !== 429
}

// request answers {data} or {problem}.
async function request(method, path, body) {
  const headers = body === undefined ? {} : { 'Content-Type': 'application/json' }
  if (token()) headers.Authorization = `Bearer ${token()}`
  try {
    const res = await fetch(path, { method, body, headers, signal: AbortSignal.timeout(15000) })
    if (res.status !== 201 && res.status !== 204) return { problem: await readProblem(res) } // any other may be a proxy's
    return { data: parse(await res.text()) }
  } catch {
    return { problem: { code: 'no_answer', detail: `${method} ${path} got no answer.` } }
  }
}

// ---- Access --------------------------------------------------------------------------
// The token is the value of the field: it is sent with each request, and not stored.

const token = () => tokenIn($('token'))

// refusal shows the next step after a refused request, and returns a sentence about it.
function refusal({ status, code }) {
  setText($('access-outcome'), '')
  const needed = status === 401 || code === 'origin_not_allowed'
  if (needed || status === 404) $('create').hidden = false
  if (status === 404) return 'Create the session, then resume.'
  if (!needed) return 'The server refused. Resume tries again.'
  $('access').open = true
  const why = status === 401 && token() ? 'The token was refused.' : 'A token is needed.'
  setText($('access-outcome'), why)
  // A connection may end while the user types elsewhere.
  if (!document.activeElement?.matches('input:not([type="checkbox"]), textarea, select')) $('token').focus()
  return `${why} Enter one, then resume.`
}

function refused(problem) {
  showProblem(problem)
  refusal(problem)
}

function accepted() {
  hideProblem()
  setText($('access-outcome'), '')
}

async function cookie(method) {
  const { problem } = await request(method, '/v1/cookie')
  setText($('access-outcome'), problem?.status === 404 ? 'This server has no access control: no token is needed.' : '')
  if (problem) return problem.status === 404 || refused(problem)
  hideProblem()
  setText($('access-outcome'), method === 'POST' ? 'Signed in until the token expires.' : 'Signed out.')
  if (method === 'DELETE') $('token').value = ''
}

// ---- As curl ---------------------------------------------------------------------------

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`

function curl(options, path, headers, body) {
  const lines = [`curl ${options} ${quoted(location.origin + path)}`, ...headers.map((h) => `-H ${quoted(h)}`)]
  if (token()) lines.push('-H "Authorization: Bearer $TOKEN"') // a shell history should not have the token
  if (body !== undefined) lines.push(`--data-raw ${quoted(body)}`)
  return lines.join(' \\\n  ')
}

function curlPublish() {
  const type = $('event-type').value.trim()
  return curl('-sS', readTarget().streamPath + '/events', ['Content-Type: application/json', ...(type ? [`Event-Type: ${type}`] : [])], $('message').value)
}

function curlRead() {
  const t = readTarget()
  const after = target?.key === t.key ? cursor : recall('cursor:' + t.key)
  return curl('-sSN', t.eventsPath + (after ? '?after=' + encodeURIComponent(after) : ''), ['Accept: text/event-stream'])
}

// copy shows a command and copies it, where the browser permits: over plain HTTP on this
// machine only.
async function copy(button, at, command) {
  setText(at, command)
  at.hidden = false
  try {
    await navigator.clipboard.writeText(command)
    button.classList.add('done')
    setTimeout(() => button.classList.remove('done'), 2000)
  } catch {
    getSelection().selectAllChildren(at)
  }
}

// ---- Publishing ----------------------------------------------------------------------

const publisher = 'page-' + randomText(4)
const EXAMPLES = {
  order: { order: 17, total: '9.50' },
  log: { jsonrpc: '2.0', method: 'notifications/message', params: { level: 'info', logger: 'playground', data: 'Hello from the playground' } },
  progress: { jsonrpc: '2.0', method: 'notifications/progress', params: { progressToken: publisher, progress: 1, total: 10 } },
  request: { jsonrpc: '2.0', id: 1, method: 'tools/call', params: { name: 'echo', arguments: { text: 'Hello' } } },
  result: { jsonrpc: '2.0', id: 1, result: { content: [{ type: 'text', text: 'Hello' }], isError: false } },
}

let autoRun = 0 // the running series, 0 for none
let autoSeries = 0
let autoCounter = 0
let unanswered = { body: '', key: '' } // a publish with no answer is repeated under its key

// named reports the field that prevents a request.
function named(...fields) {
  for (const id of fields) {
    const el = $(id)
    if (el.value.trim() !== '' && el.checkValidity()) continue
    showProblem({ code: 'invalid_name', detail: `Give the ${id} a name of 1 to 128 visible ASCII characters.` })
    el.focus()
    return false
  }
  return true
}

// publish tries once: this page shows the result.
async function publish({ session, stream }, body, key, type) {
  try {
    return { data: await store(session, stream, body, { key, type: type || undefined, token, attempts: 1 }) }
  } catch ({ code = 'failed', message, status = 0 }) {
    return { problem: { code, detail: message, status, final: final(status) } }
  }
}

async function publishOnce() {
  if (!named('session', 'stream')) return
  const body = $('message').value
  const to = readTarget()
  const type = $('event-type').value.trim()
  const same = to.streamPath + '\n' + type + '\n' + body
  const key = unanswered.body === same ? unanswered.key : randomText(20)
  setText($('published'), '')
  const { data, problem } = await publish(to, body, key, type)
  unanswered = problem && !problem.final ? { body: same, key } : { body: '', key: '' }
  if (problem) return refused(problem)
  accepted()
  stored(to)
  setText($('published'), `Stored as ${data.id}${data.duplicate ? ': it was stored before' : ''}`)
}

// stored counts the messages that a cut connection misses.
function stored(to) {
  if (state !== 'cut' || target.session !== to.session || !(target.whole || target.stream === to.stream)) return
  missed++
  setText($('detail'), `${number(missed)} published since the cut. Resume delivers ${missed === 1 ? 'it' : 'them'} first.`)
}

// auto publishes one message after the other, so that the order is ours; one without
// an answer is sent again under the same key, so that none is lost or repeated.
async function auto() {
  if (!named('session', 'stream')) return
  const run = (autoRun = ++autoSeries)
  $('auto').setAttribute('aria-pressed', 'true')
  const to = readTarget()
  let due = performance.now()
  while (autoRun === run) {
    const n = ++autoCounter
    const body = JSON.stringify({ jsonrpc: '2.0', method: 'notifications/progress', params: { progressToken: publisher, progress: n } })
    const key = randomText(20)
    for (;;) {
      const { data, problem } = await publish(to, body, key)
      if (!problem) {
        stored(to)
        setText($('auto-outcome'), `${number(n)} stored, the last as ${data.id}`)
        break
      }
      const over = problem.final || autoRun !== run
      setText($('auto-outcome'), `No. ${number(n)}: ${problem.code}${over ? '' : '; trying again'}`)
      if (over) {
        if (problem.final) refused(problem)
        if (autoRun === run) stopAuto()
        return
      }
      await sleep(700 + Math.random() * 600)
    }
    due = Math.max(due + AUTO_PERIOD, performance.now() - 10 * AUTO_PERIOD)
    await sleep(due - performance.now())
  }
}

function stopAuto() {
  autoRun = 0
  $('auto').setAttribute('aria-pressed', 'false')
}

function sleep(ms) {
  return new Promise((done) => setTimeout(done, Math.max(0, ms)))
}

function showExample() {
  const pre = el('pre')
  layJSON(pre, parseJSON(JSON.stringify(EXAMPLES[$('example').value])), 40)
  $('message').value = pre.textContent
}

async function end(what, path, stream) {
  const clear = $('clear').checked
  if (!(await confirmEnd(readTarget().session, stream, clear))) return
  setText($('ended'), '')
  const { problem } = await request('DELETE', path + (clear ? '?clear=true' : ''))
  if (problem) return refused(problem)
  accepted()
  setText($('ended'), `${what} closed${clear ? ' and cleared' : ''}.`)
}

async function createSession() {
  const wanted = $('session').value.trim()
  if (wanted !== '' && !named('session')) return
  const { data, problem } = await request('POST', '/v1/sessions', JSON.stringify(wanted ? { session: wanted } : {}))
  if (problem) return refused(problem)
  accepted()
  $('session').value = data.session ?? wanted
  changed()
  setText($('detail'), `Session ${$('session').value} is created. Connect to it, or publish.`)
}

// ---- Start ---------------------------------------------------------------------------

function changed() {
  writeURL()
  renderButtons()
}

function newName() {
  return 'demo-' + randomText(6)
}

function start() {
  const query = new URLSearchParams(location.search)
  let name = query.get('session')
  if (!name) {
    name = recall('session') || newName()
    keep('session', name)
  }
  $('session').value = name
  $('stream').value = query.get('stream') ?? 'main'
  $('whole').checked = query.get('whole') === '1'
  $('pretty').checked = recall('compact') !== '1'
  $('events').classList.toggle('compact', !$('pretty').checked)
  showExample()
  writeURL()

  const first = readTarget()
  const after = query.get('after') // a link can carry a cursor: it counts once
  if (after) keep('cursor:' + first.key, after)
  if (after || recall('connected:' + first.key)) {
    follow(first)
  } else {
    cursor = recall('cursor:' + first.key)
    if (cursor) {
      target = first
      order.reset(cursor)
    }
    setState('idle', cursor ? 'Connect resumes after the saved cursor.' : 'Connect to see the events of this stream as they arrive.')
  }
  render()
}

$('connect-form').addEventListener('submit', (e) => {
  e.preventDefault()
  if (!named('session')) return
  writeURL()
  follow(readTarget())
})
$('start-over').addEventListener('click', () => {
  if (!named('session')) return
  stop()
  target = readTarget()
  keep('cursor:' + target.key, '')
  cursor = ''
  order.reset('')
  resetView()
  writeURL()
  open()
})
$('new-session').addEventListener('click', () => {
  $('session').value = newName()
  keep('session', $('session').value)
  changed()
})
$('create').addEventListener('click', createSession)
$('cookie-set').addEventListener('click', () => cookie('POST'))
$('cookie-delete').addEventListener('click', () => cookie('DELETE'))
$('copy-publish').addEventListener('click', () => {
  if (named('session', 'stream')) copy($('copy-publish'), $('curl-publish'), curlPublish())
})
$('copy-read').addEventListener('click', () => {
  if (named('session')) copy($('copy-read'), $('curl-read'), curlRead())
})
$('cut').addEventListener('click', cut)
$('resume').addEventListener('click', open)
for (const id of ['session', 'stream', 'whole']) $(id).addEventListener('input', changed)
$('pretty').addEventListener('change', () => {
  keep('compact', $('pretty').checked ? '' : '1')
  $('events').classList.toggle('compact', !$('pretty').checked)
})
$('empty').addEventListener('click', emptyList)
$('publish-form').addEventListener('submit', (e) => {
  e.preventDefault()
  publishOnce()
})
$('message').addEventListener('keydown', (e) => {
  if (e.key === 'Enter' && (e.ctrlKey || e.metaKey)) {
    e.preventDefault()
    publishOnce()
  }
})
$('example').addEventListener('change', showExample)
$('auto').addEventListener('click', () => (autoRun ? stopAuto() : auto()))
$('close-stream').addEventListener('click', () => {
  if (named('session', 'stream')) end('Stream', readTarget().streamPath, readTarget().stream)
})
$('close-session').addEventListener('click', () => {
  if (named('session')) end('Session', readTarget().path)
})

start()
$('publish').disabled = false // before, the browser would send the form itself and lose the address
showIfServed($('to-admin'))
