// Publishes the lines of standard input, each one JSON message. Node 22.18 or newer runs
// it as it is (22.6 with --experimental-strip-types).
//
//   echo '{"order":17}' | node publish.ts demo main [--many]
//
// REJOIN_URL is Rejoin's address, REJOIN_TOKEN is a bearer token.
import { randomUUID } from 'node:crypto'
import { realpathSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { parseArgs } from 'node:util'

export type Stored = { id: string; duplicate: boolean }
export type Result = { index: number } & (Stored | { code: string; detail?: string })
export type Target = { base: string; session: string; stream: string; token?: string }

// Rejoin remembers a key for two minutes. The last attempt begins within this time.
const REPEAT_WITHIN = 100_000
const TIMEOUT = 15_000
// Codes for which a stopped request is not repeated.
const ENDED = ['session_closed', 'stream_closed', 'invalid_body']

/** Not stored for sure. `unknown` reports whether it may be stored all the same. */
export class PublishError extends Error {
  unknown: boolean
  constructor(reason: string, unknown: boolean) {
    super(reason)
    this.unknown = unknown
  }
}

/** Stores one message. */
export async function publish(to: Target, message: string, key: string): Promise<Stored> {
  return repeat(to, message, key, 'application/json', (status, answer) => (status === 201 ? (JSON.parse(answer) as Stored) : null))
}

/**
 * Stores messages in one request and returns the result of each, in their order. The key
 * counts together with the index, so repeating all of it stores nothing twice.
 */
export async function publishMany(to: Target, messages: string[], key: string): Promise<Result[]> {
  return repeat(to, messages.join('\n'), key, 'application/x-ndjson', (status, answer) => {
    if (status !== 200) return null
    const lines = answer.trimEnd().split('\n')
    const summary = JSON.parse(lines.pop()!) as { stopped: { code: string } | null; unknown: number }
    if (summary.stopped && ENDED.includes(summary.stopped.code)) throw new PublishError(JSON.stringify(summary.stopped), summary.unknown > 0)
    return summary.stopped === null && summary.unknown === 0 ? lines.map((line) => JSON.parse(line) as Result) : null
  })
}

/** Posts until done returns something, under the same key. */
async function repeat<T>(to: Target, body: string, key: string, type: string, done: (status: number, answer: string) => T | null): Promise<T> {
  const [session, stream] = [to.session, to.stream].map(encodeURIComponent)
  const url = `${to.base}/v1/sessions/${session}/streams/${stream}/events?results=each`
  const headers: Record<string, string> = { 'Content-Type': type, 'Idempotency-Key': key }
  if (to.token) headers['Authorization'] = 'Bearer ' + to.token
  const deadline = Date.now() + REPEAT_WITHIN
  let unknown = false
  for (let pause = 100; ; pause = Math.min(2 * pause, 5000)) {
    let reason: string
    let retryAfter = 0
    try {
      // A large body takes longer; the attempt ends before the key is forgotten.
      const limit = Math.min(TIMEOUT + (body.length >> 5), deadline + TIMEOUT - Date.now())
      const response = await fetch(url, { method: 'POST', headers, body, signal: AbortSignal.timeout(limit) })
      if (response.headers.get('Content-Type')?.startsWith('text/event-stream')) { // of a GET, without an end
        await response.body!.cancel()
        throw new PublishError('the request was redirected to ' + response.url, true)
      }
      const answer = await response.text()
      if (response.ok) {
        const result = done(response.status, answer)
        if (result !== null) return result
        unknown = true
      } else if (response.status >= 400 && response.status < 500 && ![408, 425, 429].includes(response.status)) {
        throw new PublishError(answer, unknown || response.redirected) // refused for good; a redirect may have made it a GET
      } else if (response.redirected || response.status !== 429 && !['unavailable', 'storage_full'].includes(codeOf(answer))) {
        unknown = true // those mean that it is not stored; a proxy's 502 or 504, say, does not
      }
      reason = answer
      retryAfter = 1000 * (Number(response.headers.get('Retry-After')) || 0) // a proxy's may be a date
    } catch (error) {
      if (error instanceof PublishError) {
        error.unknown ||= unknown
        throw error
      }
      unknown = true // no answer, or a part of one
      reason = String(error)
    }
    const wait = Math.max(retryAfter, pause * (1 + Math.random() / 2))
    if (Date.now() + wait > deadline) throw new PublishError(reason, unknown)
    if (pause === 100) console.error(`${to.base}: ${reason}; trying again`) // once a request
    await sleep(wait)
    if (Date.now() > deadline) throw new PublishError(reason, unknown) // the machine slept
  }
}

function codeOf(problem: string): string {
  try {
    return (JSON.parse(problem) as { code?: string }).code ?? ''
  } catch {
    return ''
  }
}

if (import.meta.filename === realpathSync(process.argv[1])) {
  const { values, positionals } = parseArgs({ allowPositionals: true, options: { key: { type: 'string' }, many: { type: 'boolean' } } })
  const [session, stream] = positionals
  if (!stream) {
    console.error('usage: publish.ts [--many] [--key=KEY] SESSION STREAM')
    process.exit(2)
  }
  const { key = randomUUID(), many } = values
  const to = { base: (process.env['REJOIN_URL'] ?? 'http://127.0.0.1:8080').replace(/\/$/, ''), session, stream, token: process.env['REJOIN_TOKEN'] }
  try {
    const messages: string[] = []
    for await (const line of createInterface({ input: process.stdin })) {
      if (!line.trim()) continue
      messages.push(line)
      if (!many) console.log(JSON.stringify(await publish(to, line, `${key}-${messages.length}`)))
    }
    for (const result of many ? await publishMany(to, messages, key) : []) {
      console.log(JSON.stringify(result))
      if ('code' in result) process.exitCode = 1
    }
  } catch (error) {
    if (!(error instanceof PublishError)) throw error
    console.error(`${error.unknown ? 'it may be stored or not' : 'not stored'}; the key is ${key}: ${error.message}`)
    process.exitCode = error.unknown ? 75 : 1
    process.stdin.destroy() // or it would wait for more lines
  }
}
