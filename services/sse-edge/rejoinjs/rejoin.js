// The JavaScript client of Rejoin, for browsers, Node, Deno and Bun: subscribe follows a
// stream and continues exactly where it stopped, publish stores a message once.
// No dependencies and no build step; rejoin.d.ts has the types, README.md the manual.

const RETRY = 3000 // ms between two connections, until the server sends another time
const MIN_RETRY = 100 // ms; a shorter one would reconnect without a pause
const MAX_RETRY = 3_600_000 // ms; more is a mistake of a server or a proxy
const MAX_DELAY = 30_000 // ms
const MAX_TIMER = 2 ** 31 - 1 // ms; a longer one ends at once
const SILENCE = 45_000 // ms; a server sends its clients something every 15 s
const QUEUE_CHARS = 4 << 20 // of events that wait for onEvent before an EventSource is closed
const MAX_ANSWER_CHARS = 64 << 10 // read of a refusal or of a result
const MAX_BLOCK_CHARS = 33 << 20 // of a block in an event stream; a log takes messages of up to 31 MiB
const BLOCK_CHARS = 256 // the size of an event in that queue besides its data

// RejoinError is an unexpected answer, or none (status 0).
export class RejoinError extends Error {
  name = 'RejoinError'

  constructor(message, { status = 0, code = 'no_answer', unknown = false, cause } = {}) {
    super(message, { cause })
    this.status = status
    this.code = code
    this.unknown = unknown
  }
}

// ---- Event IDs ----------------------------------------------------------------

// sequenceOf returns the position in an event ID, <stream>_<tag>_<sequence>[.<n>],
// or null for other text. It is a BigInt: sequences may exceed 2^53.
export function sequenceOf(id) {
  const match = /_[0-9a-z]{7}_(0|[1-9]\d*)(?:\.\d+)?$/.exec(id)
  return match && BigInt(match[1])
}

// ---- The event stream format ----------------------------------------------------

const LINE_END = /\r\n?|\n/g

// EventStreamParser turns the bytes of an event stream into events, by the HTML
// standard (9.2.6), for any chunks.
export class EventStreamParser {
  lastEventId = '' // of the last block, whether it had data or not
  retry = null // ms, as last sent by the server

  #decoder = new TextDecoder() // drops a byte order mark
  #text = '' // of a line that has not ended
  #skipLF = false // the last chunk ended in CR: a following LF belongs to it
  #type = ''
  #data = []
  #chars = 0 // of data
  #id = ''

  // push takes the next bytes and returns the events that they complete. It throws a RangeError for a block
  // longer than any of a Rejoin server.
  push(bytes) {
    const events = []
    let text = this.#decoder.decode(bytes, { stream: true })
    if (text === '') return events
    if (this.#skipLF && text[0] === '\n') text = text.slice(1)
    this.#skipLF = text.endsWith('\r')
    // Only the chunk is searched: to search this.#text copies it, so a line in many chunks takes quadratic time.
    LINE_END.lastIndex = 0
    let start = 0
    for (let end = LINE_END.exec(text); end !== null; end = LINE_END.exec(text)) {
      const line = this.#text + text.slice(start, end.index)
      this.#text = ''
      start = LINE_END.lastIndex
      if (line !== '') this.#field(line)
      else this.#dispatch(events)
    }
    this.#text += text.slice(start)
    if (this.#chars + this.#text.length > MAX_BLOCK_CHARS) throw new RangeError(`a block of the event stream is longer than ${MAX_BLOCK_CHARS} characters`)
    return events
  }

  #field(line) {
    const colon = line.indexOf(':')
    if (colon === 0) return // a comment
    const name = colon < 0 ? line : line.slice(0, colon)
    let value = colon < 0 ? '' : line.slice(colon + 1)
    if (value[0] === ' ') value = value.slice(1)
    switch (name) {
      case 'event':
        this.#type = value
        break
      case 'data':
        this.#data.push(value)
        this.#chars += value.length + 1
        break
      case 'id':
        if (!value.includes('\0')) this.#id = value
        break
      case 'retry':
        if (/^\d+$/.test(value)) this.retry = Number(value)
        break
    }
  }

  #dispatch(events) {
    this.lastEventId = this.#id
    if (this.#data.length > 0) events.push({ type: this.#type || 'message', id: this.#id, data: this.#data.join('\n') })
    this.#type = ''
    this.#data = []
    this.#chars = 0
  }
}

// ---- Addresses ------------------------------------------------------------------

function rootOf(base) {
  if (base === undefined && !globalThis.location) throw new TypeError('outside of a browser, base is required: the address of the server')
  const root = new URL(base ?? '/', globalThis.location?.href)
  if (!root.pathname.endsWith('/')) root.pathname += '/'
  return root
}

// checkName refuses names that would be another address: a URL resolves "..", and null is not "null".
function checkName(what, name) {
  if (typeof name !== 'string' || ['', '.', '..'].includes(name)) throw new TypeError(`not the name of a ${what}: ${name}`)
}

function eventsURL(session, stream, base) {
  if (typeof session !== 'string' || session === '') throw new TypeError('session, sessions or url is required')
  checkName('session', session)
  if (stream !== undefined) checkName('stream', stream)
  const path = 'v1/sessions/' + encodeURIComponent(session) + (stream === undefined ? '' : '/streams/' + encodeURIComponent(stream))
  return new URL(path + '/events', rootOf(base))
}

// groupURL is for several sessions, or for one stream of each; added ones are new to the cursor.
function groupURL({ sessions, added = [], stream, base }) {
  if (typeof sessions === 'string') throw new TypeError('sessions is a list')
  if (stream !== undefined) checkName('stream', stream)
  const url = new URL('v1/events', rootOf(base))
  for (const session of sessions) url.searchParams.append('session', session)
  for (const session of added) url.searchParams.append('added', session)
  if (stream !== undefined) url.searchParams.append('stream', stream)
  return url
}

// ---- Waiting --------------------------------------------------------------------

// backoff doubles with each failure in a row, up to max. It is at least the
// pause that the server set, and up to half more, so that clients do not reconnect together.
export function backoff(retry, failures, max, random = Math.random) {
  const least = Math.min(retry * 2 ** failures, Math.max(retry, max / 1.5))
  return least * (1 + random() / 2)
}

// sleep ends early when the signal is aborted.
function sleep(ms, signal) {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer)
      signal?.removeEventListener('abort', done)
      resolve()
    }
    const timer = setTimeout(done, Math.min(ms, MAX_TIMER))
    if (signal?.aborted) done()
    signal?.addEventListener('abort', done)
  })
}

// watch calls silent when no data arrived for a time. It reads the clock, since timers
// stand still while a machine sleeps. A clock that was set back ends the connection as well.
function watch(limit, silent) {
  let heardAt = Date.now() + limit // an opening may take twice as long
  const timer = setInterval(() => {
    if (Math.abs(Date.now() - heardAt) >= limit) silent()
  }, Math.min(limit / 4, MAX_TIMER))
  return {
    heard: () => { heardAt = Date.now() },
    pause: () => { heardAt = NaN }, // until the next call of heard
    stop: () => clearInterval(timer),
  }
}

// ---- Answers --------------------------------------------------------------------

function parseJSON(text) {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

// textOf returns the text of a caught value. Any value can be thrown, and Node's fetch has the reason in a cause.
function textOf(thrown) {
  const reason = thrown?.cause?.message || thrown?.cause?.code
  return (thrown?.message ?? String(thrown)) + (reason ? `: ${reason}` : '')
}

// problemOf reads a problem document (RFC 9457), or any other body.
async function problemOf(response) {
  const body = parseJSON(await shortText(response).catch(() => '')) ?? {}
  const said = body.detail ?? body.title ?? response.statusText
  return new RejoinError(`${response.status}: ${said || 'no reason was given'}${redirection(response)}`, {
    status: response.status,
    code: body.code ?? `http_${response.status}`,
  })
}

// redirection is the end of errors about answers from another address: 301, 302 and 303 turn a POST into a GET, and
// fetch takes a token to no other origin.
const redirection = ({ redirected, url }) => redirected ? ` (the request was redirected to ${url}: use that address)` : ''

// shortText returns a body, up to the length of a problem document or a result.
async function shortText(response) {
  if (!response.body?.getReader) return response.text() // some implementations of fetch have no streams
  const reader = response.body.getReader()
  const decoder = new TextDecoder()
  let text = ''
  while (text.length < MAX_ANSWER_CHARS) {
    const { done, value } = await reader.read()
    if (done) return text
    text += decoder.decode(value, { stream: true })
  }
  await reader.cancel()
  return text
}

// passing reports whether a status is temporary.
function passing(status) {
  return status < 400 || status >= 500 || status === 408 || status === 425 || status === 429
}

// mayBeStored is about a message that a response refuses. Only Rejoin knows that it is not stored: a 502
// or 504, for example, is a proxy's, and the request may have reached the server.
function mayBeStored({ status, code }) {
  return passing(status) && status !== 425 && status !== 429 && code !== 'unavailable' && code !== 'storage_full'
}

// retryAfter reads the header of this name (RFC 9110, 10.2.3), seconds or a date, in ms.
function retryAfter(response) {
  const value = response.headers.get('Retry-After') ?? ''
  return (value.endsWith(' GMT') ? Date.parse(value) - Date.now() : 1000 * value) || 0 // no NaN
}

function tokenOf(token, refused) {
  return typeof token === 'function' ? token(refused) : token
}

// unlessAborted waits for a promise, but no longer than until the signal is aborted.
async function unlessAborted(signal, promise) {
  let abort
  const aborted = new Promise((_, reject) => { abort = () => reject(signal.reason) })
  signal.addEventListener('abort', abort)
  if (signal.aborted) abort()
  try {
    return await Promise.race([promise, aborted])
  } finally {
    signal.removeEventListener('abort', abort)
  }
}

// ---- The storage of a cursor ------------------------------------------------------

function storeOf(storage) {
  if (storage === undefined) return { load: () => null, save: () => {} }
  if (typeof storage !== 'string') return storage
  let local
  try {
    local = globalThis.localStorage
  } catch {
    // Disabled by the user: the page works, and forgets the cursor at its end.
    return storeOf(undefined)
  }
  if (!local?.getItem) throw new TypeError('without localStorage, storage is an object with load and save')
  return {
    load: () => local.getItem(storage),
    save(id) {
      try {
        local.setItem(storage, id)
      } catch {
        // Full: the cursor in memory serves this page.
      }
    },
  }
}

// ---- The subscription -------------------------------------------------------------

// subscribe follows a stream, all streams of a session, or several sessions.
export function subscribe(target, options = {}) {
  return new Subscription(target, options)
}

const OUR_TYPES = ['connect', 'cursor', 'gap', 'close', 'expiring', 'state'] // state: of several sessions alone
const LATER_TYPES = 'rejoin.' // begins the types that later versions of the edge may send
const IN_BROWSER = Boolean(globalThis.EventSource) && !globalThis.process?.versions?.node // which has it behind a flag
const STOPPED = { reason: 'stopped' }

// isFailure reports whether an end is an error; the error itself may be undefined, since anything can be thrown.
const isFailure = ({ reason }) => reason === 'refused' || reason === 'failed'

// contentOf returns the data of a block, or undefined for one that a proxy made or broke: it may send an empty
// message while no edge is available, or an error in the middle of an event. No ID of it counts: some proxies cut the ID of
// several sessions, so the next connection begins at our own.
const contentOf = ({ type, data }) => type.startsWith(LATER_TYPES) ? null : parseJSON(data)
const byProxy = () => new Error('a proxy answered in place of an edge')
const unavailable = () => new Error('the service is unavailable')

// A connection is made by one of two methods, by the browser's EventSource or with
// fetch. Each passes the events to #deliver, one after the other, and returns how the
// connection ended: {end}, {now} for another one at once, or {error} for another one
// after a pause. #run owns all of it, and has cleaned up when it calls onClose.
class Subscription {
  closed // resolves with the end

  #options
  #url
  #store
  #types // the event types to deliver, or null for all
  #heard // the types that EventSource is asked for, or null for all; as blocks have them
  #native // whether EventSource makes the connections
  #stream = null // the followed stream, or null for the flow of a session
  #several = false // whether it follows several sessions
  #enveloped = false // whether each message comes in an object that names its stream
  #cursor = ''
  #position = -1n // the cursor's
  #state = 'connecting'
  #retry = RETRY
  #failures = 0 // connections in a row without a connect event
  #token // of the next connection, when it was fetched after a 401
  #renewed = false // the last answer was a 401
  #stopped = false
  #connection = new AbortController() // of the newest connection
  #pause = new AbortController() // of the pause between two connections
  #looped = false
  #offer = null // an event that the loop has not taken
  #settle = () => {} // reports whether the loop has handled the last event
  #wanted = () => {} // the loop waits for an offer

  constructor(target, options) {
    const { url, session, sessions, stream, base } = target
    const { types, from, token, headers, signal, silence = SILENCE, maxDelay = MAX_DELAY, credentials = 'same-origin' } = options
    if (![undefined, 'start', 'now'].includes(from)) throw new TypeError(`from is 'start' or 'now', not ${from}`)
    if (typeof types === 'string' && types !== '*') throw new TypeError("types is a list, or '*'")
    if (url !== undefined) this.#url = new URL(url, globalThis.location?.href)
    else this.#url = sessions ? groupURL(target) : eventsURL(session, stream, base)
    if (!/^https?:$/.test(this.#url.protocol)) throw new TypeError(`the address does not begin with http:// or https://: ${this.#url}`)
    this.#options = { ...options, headers: new Headers(headers), silence, maxDelay, credentials }
    this.#store = storeOf(options.storage)
    // An EventSource always sends cookies to its own origin.
    this.#native = IN_BROWSER && types !== '*' && credentials !== 'omit' && [token, headers, options.fetch].every((it) => it === undefined)
    const listed = new Set(['message', ...(Array.isArray(types) ? types : [])])
    this.#types = Array.isArray(types) ? listed : null
    this.#heard = this.#native ? listed : null
    this.closed = this.#run()
    this.#listenAround(signal)
  }

  get cursor() {
    return this.#cursor
  }

  get state() {
    return this.#state
  }

  get transport() {
    return this.#native ? 'eventsource' : 'fetch'
  }

  close() {
    this.#stopped = true
    this.#connection.abort(new Error('the subscription was closed'))
    this.#pause.abort()
    this.#offer = null
    setTimeout(() => this.#settle(false)) // later than a loop that requests another event at once
  }

  async *[Symbol.asyncIterator]() {
    if (this.#options.onEvent) throw new TypeError('the events go to onEvent')
    if (this.#looped) throw new TypeError('the events go to another loop')
    this.#looped = true
    try {
      for (;;) {
        while (this.#offer === null && this.#state !== 'closed') await new Promise((resolve) => { this.#wanted = resolve })
        const event = this.#offer
        if (event === null) break
        this.#offer = null
        yield event
        this.#settle(true) // a loop that requests the next event has handled this one
      }
    } finally {
      this.#looped = false
      this.close()
    }
    const end = await this.closed
    if (isFailure(end)) throw end.error
  }

  // #listenAround handles events from outside until the subscription has ended.
  #listenAround(signal) {
    const heed = [
      [signal, 'abort', () => this.close()],
      [globalThis, 'online', () => this.#pause.abort()],
      // Its connection ended while the browser kept the page for the back button.
      [globalThis, 'pageshow', (event) => event.persisted && this.#connection.abort(new Error('the page was suspended'))],
    ]
    for (const [where, type, heard] of heed) where?.addEventListener?.(type, heard)
    if (signal?.aborted) this.close()
    this.closed.finally(() => {
      for (const [where, type, heard] of heed) where?.removeEventListener?.(type, heard)
    })
  }

  async #run() {
    let end
    try {
      this.#cursor = this.#options.cursor ?? (await this.#store.load()) ?? ''
      this.#position = sequenceOf(this.#cursor) ?? -1n
      await null // no handler is called before subscribe has returned
      end = await this.#follow()
    } catch (error) {
      end = { reason: 'failed', error }
    }
    this.#state = 'closed'
    this.#wanted()
    const { onClose, onEvent } = this.#options
    if (onClose) new Promise((done) => done(onClose(end))).catch((error) => console.error('rejoin: onClose has failed:', error))
    else if (isFailure(end) && onEvent) console.error('rejoin: the subscription has ended:', end.error)
    return end
  }

  async #follow() {
    while (!this.#stopped) {
      await this.#setState('connecting')
      if (this.#stopped) break // onState has closed it
      const { end, now, error, asked = 0 } = this.#native ? await this.#listen() : await this.#fetch()
      if (end) return end
      if (now || this.#stopped) continue
      const retry = Math.min(Math.max(this.#retry, asked, MIN_RETRY), MAX_RETRY)
      const retryIn = backoff(retry, this.#failures++, this.#options.maxDelay)
      this.#pause = new AbortController()
      await this.#setState('waiting', { retryIn, error })
      await sleep(retryIn, this.#pause.signal)
    }
    return STOPPED
  }

  #setState(state, detail = {}) {
    if (this.#stopped) return
    this.#state = state
    return this.#options.onState?.(state, detail)
  }

  #address(after) {
    const url = new URL(this.#url)
    if (after !== '') url.searchParams.set('after', after)
    else if (this.#cursor === '' && this.#options.last !== undefined) url.searchParams.set('last', this.#options.last)
    else if (this.#cursor === '' && this.#options.from === 'now') url.searchParams.set('from', 'now')
    return url
  }

  #open(silent = () => {}) {
    this.#connection = new AbortController()
    const limit = this.#options.silence
    return watch(limit, () => {
      silent()
      this.#connection.abort(new Error(`no data for ${limit / 1000} s`))
    })
  }

  // #listen leaves the connection to EventSource, which also makes the next ones,
  // until it gives up: it does when an answer is not 200, and does not report the
  // status. From then on the connections are ours. They are as well after a silence: an EventSource does not
  // report a message that takes long to arrive, and the message would restart each time.
  async #listen() {
    const watch = this.#open(() => { this.#native = !opened })
    const { signal } = this.#connection
    const source = new EventSource(this.#address(this.#cursor), { withCredentials: this.#options.credentials === 'include' })
    const queue = []
    let chars = 0
    let full = false
    let opened = false
    let lost = false
    let wake = () => {}
    const take = ({ type, lastEventId, data }) => {
      if (data === undefined) return // types may list "open" and "error", which are the EventSource's own
      watch.heard()
      queue.push({ type, id: lastEventId, data })
      chars += data.length + BLOCK_CHARS
      full ||= chars > QUEUE_CHARS
      if (full) source.close()
      wake()
    }
    for (const type of new Set([...OUR_TYPES, ...this.#heard])) source.addEventListener(type, take)
    source.onopen = () => {
      watch.heard()
      opened = true
      lost = false
    }
    source.onerror = () => {
      watch.heard()
      lost = true
      wake()
    }
    signal.addEventListener('abort', () => {
      source.close()
      wake()
    })
    try {
      for (;;) {
        while (queue.length > 0 && !this.#stopped) {
          const block = queue.shift()
          const content = contentOf(block)
          if (content === undefined) return { error: byProxy() }
          const end = await this.#deliver(block, content)
          if (end) return { end }
          chars -= block.data.length + BLOCK_CHARS
        }
        if (full) return { now: true } // with room again, after the last event that was delivered
        if (signal.aborted) return { error: signal.reason }
        if (source.readyState === EventSource.CLOSED) break
        if (lost) {
          lost = false
          if (this.#state !== 'waiting') await this.#setState('waiting')
          continue // onState may have closed it
        }
        await new Promise((resolve) => { wake = resolve })
      }
    } finally {
      watch.stop()
      source.close()
    }
    this.#native = false
    return opened ? { error: new Error('EventSource gave up') } : { now: true }
  }

  // #fetch makes one connection. Unread events wait at the server, so a slow
  // onEvent needs no queue.
  async #fetch() {
    const watch = this.#open()
    const { signal } = this.#connection
    try {
      let response, token
      try {
        token = this.#token ?? (await unlessAborted(signal, tokenOf(this.#options.token, false)))
        this.#token = undefined
        response = await this.#request(token, signal)
      } catch (error) {
        this.#renewed = false
        return { error }
      }
      if (response.status !== 200) return await this.#refused(response, token, signal)
      this.#renewed = false
      if (!/^text\/event-stream\b/i.test(response.headers.get('Content-Type'))) {
        return { error: new RejoinError('the answer is not an event stream', { status: 200, code: 'no_event_stream' }) }
      }
      return await this.#read(response.body.getReader(), watch)
    } finally {
      watch.stop()
      this.#connection.abort()
    }
  }

  #request(token, signal) {
    const headers = new Headers(this.#options.headers)
    headers.set('Accept', 'text/event-stream')
    if (token) headers.set('Authorization', 'Bearer ' + token)
    // The saved cursor may be any text: the server answers it with a gap.
    const inHeader = /^[!-~]+$/.test(this.#cursor)
    if (inHeader) headers.set('Last-Event-ID', this.#cursor)
    const send = this.#options.fetch ?? fetch
    return send(this.#address(inHeader ? '' : this.#cursor), { headers, signal, cache: 'no-store', credentials: this.#options.credentials })
  }

  async #read(reader, watch) {
    const parser = new EventStreamParser()
    for (;;) {
      let chunk
      watch.heard()
      try {
        chunk = await reader.read()
      } catch (error) {
        return { error }
      }
      if (chunk.done) return this.#state === 'live' ? {} : { error: unavailable() } // an edge without the log, or a proxy without an edge
      watch.pause()
      const blocks = parser.push(chunk.value)
      this.#retry = parser.retry || this.#retry
      for (const block of blocks) {
        if (this.#stopped) return { end: STOPPED }
        const content = contentOf(block)
        if (content === undefined) return { error: byProxy() }
        const end = await this.#deliver(block, content)
        if (end) return { end }
      }
      await this.#moveTo(parser.lastEventId) // of a block without data
    }
  }

  async #refused(response, token, signal) {
    if (response.status === 204) return { end: { reason: 'closed' } }
    const error = await problemOf(response)
    if (this.#stopped) return { end: STOPPED }
    if (response.status !== 401) this.#renewed = false
    if (response.status === 401 && !this.#renewed) {
      this.#renewed = true
      try {
        if (typeof this.#options.token === 'function') {
          this.#token = await unlessAborted(signal, tokenOf(this.#options.token, true))
          if (this.#token !== token) return { now: true }
        } else if (this.#options.renew && (await unlessAborted(signal, this.#options.renew())) !== false) {
          return { now: true }
        }
      } catch (error) {
        this.#renewed = false
        return { error }
      }
    }
    if (!passing(response.status)) return { end: { reason: 'refused', error } }
    return { error, asked: retryAfter(response) }
  }

  // #deliver delivers an event and then moves the cursor after it. It returns the end
  // of the subscription, if the event ends it.
  async #deliver({ type, id, data }, content) {
    const { onConnect, onGap, onExpiring, onSession } = this.#options
    let end
    switch (type) {
      case 'connect': {
        const place = content ?? {}
        const envelope = this.#url.searchParams.get('envelope')
        this.#stream = place.stream ?? null
        this.#several = Array.isArray(place.sessions)
        this.#enveloped = this.#several || (envelope === null ? place.stream === null : envelope === 'true')
        this.#failures = 0
        await this.#setState('live')
        if (this.#stopped) return STOPPED // onState has closed it
        await onConnect?.({ ...place, id })
        break
      }
      case 'cursor':
        break
      case 'gap': {
        const gap = { ...content, id }
        if (onGap) await onGap(gap)
        else console.warn('rejoin: events are missing:', gap)
        await this.#moveTo(id, true)
        break
      }
      case 'expiring':
        await onExpiring?.(content ?? {})
        break
      case 'close':
        end = { reason: 'closed' }
        break
      case 'state':
        if (this.#several) {
          await onSession?.(content ?? {})
          break
        } // else a publisher uses the type
      default:
        if (type.startsWith(LATER_TYPES)) break
        if ((this.#heard?.has(type) ?? true) && !(await this.#message(type, id, data, content))) return STOPPED
    }
    await this.#moveTo(id)
    return end
  }

  // #message reports whether the event needs no second delivery.
  async #message(type, id, data, content) {
    const { onEvent, onRepeat } = this.#options
    const event = this.#enveloped
      ? { id, type: content?.type, ...(this.#several && { session: content?.session }), stream: content?.stream, time: content?.time, message: content?.message, data }
      : { id, type, stream: this.#stream, time: null, message: content, data }
    if (!(this.#types?.has(event.type) ?? true)) return true
    const position = sequenceOf(id)
    if (position !== null && position <= this.#position) {
      await onRepeat?.(event)
      return true
    }
    if (!onEvent) {
      this.#offer = event
      this.#wanted()
      return new Promise((resolve) => { this.#settle = resolve })
    }
    await onEvent(event)
    return true
  }

  // #moveTo takes an ID as the cursor. Only a gap may move it back.
  async #moveTo(id, back = false) {
    const position = sequenceOf(id)
    if (id === '' || id === this.#cursor || (position !== null && position < this.#position && !back)) return
    this.#cursor = id
    this.#position = position ?? this.#position
    await this.#store.save(id)
  }
}

// ---- Publishing --------------------------------------------------------------------

// Every attempt ends within 115 s after the first one that may have stored the message: the server remembers a key for
// two minutes. Timers and performance.now stand still while a machine sleeps, and the clock may be set: the longer time
// counts, in both directions.
const REPEAT_WITHIN = 100_000 // ms after the first attempt that may have stored the message
const ATTEMPTS = 5
const ATTEMPT_TIMEOUT = 15_000 // ms, and more for a large message
const ATTEMPT_RATE = 32 // its characters per ms, a quarter of a megabit a second
const ATTEMPT_PAUSE = 300 // ms before the second one, doubled each time
const ATTEMPT_PAUSE_MAX = 5000 // ms

const moment = () => [Date.now(), performance.now()]
const elapsed = ([clock, running]) => Math.max(Math.abs(Date.now() - clock), performance.now() - running)

// latin1 returns a text whose characters are the bytes of another one in UTF-8, as in headers.
const latin1 = (text) => String.fromCharCode(...new TextEncoder().encode(text))

// publish stores a message and returns {id, duplicate}.
export async function publish(session, stream, message, options = {}) {
  const { base, key = newKey(), type, token, attempts = ATTEMPTS, signal } = options
  if (typeof stream !== 'string') throw new TypeError('stream is required')
  const url = eventsURL(session, stream, base)
  const headers = new Headers(options.headers)
  headers.set('Content-Type', 'application/json')
  headers.set('Idempotency-Key', key)
  if (type !== undefined) headers.set('Event-Type', latin1(type))
  const body = typeof message === 'string' ? message : JSON.stringify(message)
  let doubt // when the first attempt that may have stored the message began
  let refused = false // whether a token was refused once
  let last // the error of the previous attempt
  for (let attempt = 1; ; attempt++) {
    const bearer = typeof token === 'function' ? await askedInTime(token, refused, signal, doubt !== undefined) : token
    if (bearer) headers.set('Authorization', 'Bearer ' + bearer)
    signal?.throwIfAborted()
    const begun = moment()
    if (doubt && elapsed(doubt) >= REPEAT_WITHIN) throw last
    const limit = Math.min(ATTEMPT_TIMEOUT + String(body).length / ATTEMPT_RATE, REPEAT_WITHIN + ATTEMPT_TIMEOUT - (doubt ? elapsed(doubt) : 0))
    const { answer, error, asked = 0 } = await post(url, { headers, body, credentials: options.credentials }, limit, options)
    if (answer) return answer
    signal?.throwIfAborted()
    if (error.unknown) doubt ??= begun
    error.unknown = doubt !== undefined
    last = error
    const renew = error.status === 401 && typeof token === 'function' && !refused
    if (!renew && (!passing(error.status) || attempt >= attempts)) throw error
    refused ||= renew
    if (!renew) await sleep(Math.min(Math.max(backoff(ATTEMPT_PAUSE, attempt - 1, ATTEMPT_PAUSE_MAX), asked), ATTEMPT_PAUSE_MAX), signal)
  }
}

// askedInTime calls a token function, which may take as long as an attempt.
async function askedInTime(token, refused, signal, unknown) {
  const limit = attemptSignal(signal)
  try {
    return await unlessAborted(limit.signal, token(refused))
  } catch (cause) {
    if (signal?.aborted) throw cause
    throw new RejoinError(limit.signal.aborted ? 'the token function timed out' : `no token: ${textOf(cause)}`, { unknown, cause })
  } finally {
    limit.end()
  }
}

// post makes one attempt. A failure without an answer may have stored the message.
async function post(url, request, time, { fetch: send = fetch, signal }) {
  const limit = attemptSignal(signal, time)
  try {
    const response = await send(url, { ...request, method: 'POST', signal: limit.signal })
    const answer = response.status === 201 ? parseJSON(await shortText(response)) : null // any other may be a proxy's
    if (typeof answer?.id === 'string') return { answer }
    const error = response.ok ? await noResult(response) : await problemOf(response)
    error.unknown = response.redirected || mayBeStored(error) // fetch does not report whether a redirect made it a GET
    return { error, asked: retryAfter(response) }
  } catch (cause) {
    return { error: new RejoinError(`no answer: ${textOf(cause)}`, { unknown: true, cause }) }
  } finally {
    limit.end()
  }
}

// noResult is the error of a success that is not Rejoin's. Its body is not read: the GET of this address is an
// event stream, which has no end.
async function noResult(response) {
  if (!response.bodyUsed) await response.body?.cancel()
  return new RejoinError(`${response.status}: the answer does not confirm that the message is stored${redirection(response)}`, { status: response.status, code: `http_${response.status}` })
}

// attemptSignal returns a signal that is aborted with another one, and after the time of an attempt, until
// end is called.
function attemptSignal(signal, time = ATTEMPT_TIMEOUT) {
  const abort = new AbortController()
  const timer = setTimeout(() => abort.abort(new Error('it timed out')), time)
  const follow = () => abort.abort(signal.reason)
  signal?.addEventListener('abort', follow)
  if (signal?.aborted) follow()
  const end = () => {
    clearTimeout(timer)
    signal?.removeEventListener('abort', follow)
  }
  return { signal: abort.signal, end }
}

// newKey is random text; crypto.randomUUID exists only on pages loaded over TLS.
function newKey() {
  const bytes = new Uint8Array(16)
  if (globalThis.crypto) crypto.getRandomValues(bytes)
  else bytes.forEach((_, i) => { bytes[i] = Math.random() * 256 }) // uniqueness is enough
  return Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('')
}
