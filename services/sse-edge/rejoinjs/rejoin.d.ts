/** The stream, the session with all its streams, or the sessions to follow. */
export type Target =
  | {
      session: string
      /** Left out: the flow of the whole session. */
      stream?: string
      /** Address of the server. Default: the page's own origin; needed in Node. */
      base?: string | URL
    }
  | {
      /** Up to 500 sessions, on one connection. A name that ends in `*` stands for all names with that prefix. */
      sessions: string[]
      /** Sessions that are new since the cursor: they begin at the start, or at `from`. Later list them in `sessions`. */
      added?: string[]
      /** Left out: all streams of the sessions. */
      stream?: string
      base?: string | URL
    }
  | {
      /** Address of an event resource, as `/v1/sessions/{session}/streams/{stream}/events`. */
      url: string | URL
    }

/** An event, as `onEvent` and the loop receive it. */
export interface RejoinEvent<Message = unknown> {
  /** The cursor after the event: everything up to it has been delivered. */
  id: string
  /** `message`, or its publisher's Event-Type. */
  type: string
  /** The session's name, where several are followed. */
  session?: string
  /** The stream's name. Null only in a session's flow with `?envelope=false`. */
  stream: string | null
  /** When it was stored, RFC 3339 with nanoseconds. Null where messages come without an envelope: in a single stream. */
  time: string | null
  /** The message, parsed: any JSON value. */
  message: Message
  /** The text as received, byte for byte: of the message, or of its envelope. */
  data: string
}

/** Events that should have followed the cursor, and no longer exist. */
export interface Gap {
  /** The cursor to resume after. Empty, or the cursor before the gap, where several sessions are followed or another gap follows. */
  id: string
  reason: 'expired' | 'trimmed' | 'cleared' | 'rolled_back' | 'damaged' | 'unknown'
  /** False when it is unknown whether any event is missing. */
  certain: boolean
  /** The session of the gap, where several are followed. */
  session?: string
  /** The stream of the gap; null for a whole session. */
  stream: string | null
  requested: string
  resumesAt: string
}

/** The start of a connection. */
export interface Connection {
  /** The cursor at which it begins; empty when a gap follows. */
  id: string
  session: string
  stream: string | null
  /** In place of `session`, `stream`, `exists` and `oldest`, where several are followed. */
  sessions?: SessionState[]
  /** Whether any event was ever written to it. */
  exists: boolean
  /** Whether it resumes exactly after the cursor that was sent. */
  resumed: boolean
  /** The oldest retained event. */
  oldest: string | null
  /** Retention of events, in seconds; -1 without a limit. */
  retainedFor: number
}

/** Whether a session, or its stream, is received where several are followed. */
export interface SessionState {
  session: string
  stream: string | null
  /** `unknown`: there is no such session, or this client may not read it. `full`: more sessions match this pattern than fit. */
  state: 'open' | 'closed' | 'unknown' | 'full'
}

/** How a subscription ended. */
export type End =
  /** The stream or session was closed, and all its events have been delivered. */
  | { reason: 'closed'; error?: undefined }
  /** `close` was called, the signal aborted, or the loop left. */
  | { reason: 'stopped'; error?: undefined }
  /** The server refused, and will again: a 4xx other than 408, 425 and 429; a 401 once no new token is available. */
  | { reason: 'refused'; error: RejoinError }
  /**
   * A callback threw: the cursor is before the event that it was called for. Or the storage threw: the event was
   * delivered, and `cursor` is after it. Or fetch received a block longer than any of a Rejoin server.
   */
  | { reason: 'failed'; error: unknown }

export type State = 'connecting' | 'live' | 'waiting' | 'closed'

export interface StateDetail {
  /** Milliseconds until the next connection; undefined when the browser decides. */
  retryIn?: number
  /** Why the last connection ended; undefined when the server ended it normally. */
  error?: unknown
}

/** The storage of a cursor between two runs. Both methods may return promises. */
export interface CursorStore {
  load(): string | null | undefined | Promise<string | null | undefined>
  save(id: string): unknown
}

/** A bearer token, or a function that returns one. It is called before each connection, and with `true` after a token was refused. */
export type Token = string | ((refused: boolean) => string | null | undefined | Promise<string | null | undefined>)

export interface SubscribeOptions<Message = unknown> {
  /**
   * Is called with one event after the other; when it returns a promise, the next
   * one waits for it. Without it, one `for await` loop reads the subscription.
   */
  onEvent?(event: RejoinEvent<Message>): unknown
  /** Is called for each gap. Default: a warning on the console. */
  onGap?(gap: Gap): unknown
  /** Is called once, when no event will follow; its exceptions are written to the console. Default: an error that ends the subscription is. */
  onClose?(end: End): void
  /** Is called with each state but `closed`, which `onClose` reports. */
  onState?(state: Exclude<State, 'closed'>, detail: StateDetail): unknown
  onConnect?(connection: Connection): unknown
  /** Is called when a session begins or ends, where several are followed. */
  onSession?(session: SessionState): unknown
  /** Is called a minute before the server ends the connection since its token expires. A `token` function needs no other action. */
  onExpiring?(data: Record<string, unknown>): unknown
  /** Is called with a dropped event: it lies at or before the cursor. A correct server sends none. */
  onRepeat?(event: RejoinEvent<Message>): unknown

  /** The cursor to begin after. Wins over the stored one; the empty string begins without a cursor. */
  cursor?: string
  /** The storage of the cursor: the key in localStorage, or an object that loads and saves it. It is saved once onEvent is done with an event. */
  storage?: string | CursorStore
  /** The start without a cursor: the oldest retained event (the default) or the next event. */
  from?: 'start' | 'now'
  /** The start without a cursor, in place of `from`: the number of newest events to begin with, 1 to 1000. Not for several sessions. */
  last?: number

  /**
   * The event types to deliver besides `message`, or `'*'` for all. Default: all with
   * fetch, none with EventSource, which needs each type by name. `'*'`
   * takes fetch. Of a session, or of several, the default is all.
   */
  types?: string[] | '*'
  /** Sent as `Authorization: Bearer …`; takes fetch. */
  token?: Token
  /** Takes fetch. */
  headers?: RequestInit['headers']
  /** For pages that log in with a cookie: is called after a 401, to log in again. False gives up; after a rejection it is called again later. */
  renew?(): unknown
  /** As of fetch; with EventSource, `include` is `withCredentials`, and `omit` takes fetch. Default: `same-origin`. */
  credentials?: RequestInit['credentials']
  /** Closes the subscription when it is aborted. */
  signal?: AbortSignal

  /** Milliseconds without data after which a connection counts as dead. Default: 45,000; the server's heartbeat is 15,000. */
  silence?: number
  /** Maximum milliseconds between two connections, unless the server sets more, up to an hour. Default: 30,000. */
  maxDelay?: number
  /** Takes the place of the global fetch. */
  fetch?: typeof fetch
}

export interface Subscription<Message = unknown> extends AsyncIterable<RejoinEvent<Message>> {
  /** The cursor up to which all events have been handled; empty before the first. */
  readonly cursor: string
  readonly state: State
  /** The API that makes the connections. An `eventsource` that gave up or was silent for too long becomes `fetch`. */
  readonly transport: 'eventsource' | 'fetch'
  /** Resolves when no event will follow. */
  readonly closed: Promise<End>
  /** Ends the subscription. A callback that is running is not interrupted; afterwards only onClose is called. */
  close(): void
}

/**
 * Follows a stream, or all streams of a session, and continues exactly where it
 * stopped, for as long as the stream lives. It throws a TypeError for an invalid target
 * or option.
 */
export function subscribe<Message = unknown>(target: Target, options?: SubscribeOptions<Message>): Subscription<Message>

export interface PublishOptions {
  /** Address of the server. Default: the page's own origin; needed in Node. */
  base?: string | URL
  /** Idempotency key. Default: a random one. */
  key?: string
  /** Event type. Default: `message`. */
  type?: string
  token?: Token
  headers?: RequestInit['headers']
  /** As of fetch. Default: `same-origin`. */
  credentials?: RequestInit['credentials']
  /** Maximum number of attempts. Default: 5. More may exceed the server's memory of a key (2 min). */
  attempts?: number
  signal?: AbortSignal
  /** Takes the place of the global fetch. */
  fetch?: typeof fetch
}

/** The server's answer about a stored message. */
export interface Stored {
  id: string
  /** Whether it had been stored under this key before. */
  duplicate: boolean
}

/**
 * Stores a message: a value that becomes JSON, or a JSON text as a string. Temporary failures are tried
 * again under the same key. It rejects with a RejoinError, with the signal's reason, or with a TypeError for an
 * invalid argument.
 */
export function publish(session: string, stream: string, message: unknown, options?: PublishOptions): Promise<Stored>

/** An unexpected answer, or none. */
export class RejoinError extends Error {
  name: 'RejoinError'
  /** HTTP status; 0 when there was no answer. */
  status: number
  /** The server's stable code, such as `stream_closed`; `no_answer` when there was none; `http_502`, for example, when a proxy answered. */
  code: string
  /** Of a publish: whether the message may have been stored all the same. */
  unknown: boolean
}

/** The position in an event ID; null for other text. */
export function sequenceOf(id: string): bigint | null

/** Parses an event stream by the HTML standard, for any chunks. */
export class EventStreamParser {
  /** Takes the next bytes and returns the events that they complete. Throws a RangeError for a block without an end: 33 Mi characters. */
  push(bytes: Uint8Array): { type: string; id: string; data: string }[]
  /** Of the last block, whether it had data or not. */
  readonly lastEventId: string
  /** Reconnection time in milliseconds, as last sent by the server. */
  readonly retry: number | null
}

/** The wait in milliseconds after this number of failures in a row. */
export function backoff(retry: number, failures: number, max: number, random?: () => number): number
