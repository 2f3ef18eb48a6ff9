import assert from 'node:assert/strict'
import { test } from 'node:test'
import { EventStreamParser } from '../rejoin.js'

const encoder = new TextEncoder()

// parse feeds the chunks and returns the dispatched events.
function parse(...chunks) {
  const parser = new EventStreamParser()
  const events = chunks.flatMap((chunk) => parser.push(typeof chunk === 'string' ? encoder.encode(chunk) : chunk))
  return { events, id: parser.lastEventId, retry: parser.retry }
}

const message = (data, id = '') => ({ type: 'message', id, data })

test('the parser', async (t) => {
  const cases = {
    'a line may end in LF': ['data: a\n\n', [message('a')]],
    'a line may end in CRLF': ['data: a\r\n\r\n', [message('a')]],
    'a line may end in CR': ['data: a\r\rdata: b\r\r', [message('a'), message('b')]],
    'line ends may be mixed': ['data: a\rdata: b\ndata: c\r\n\n', [message('a\nb\nc')]],
    'CRLF CR is two line ends': ['data: a\r\n\rdata: b\n\n', [message('a'), message('b')]],
    'a byte order mark at the beginning is dropped': ['\ufeffdata: a\n\n', [message('a')]],
    'a byte order mark elsewhere is text': ['data: \ufeffa\n\n', [message('\ufeffa')]],
    'a comment is no event': [':\n: data: a\n\n:\n\n', []],
    'a block may begin with comments': [': hello\ndata: a\n\n', [message('a')]],
    'only one space after the colon is dropped': ['data:  a\ndata:b\ndata: c:d\n\n', [message(' a\nb\nc:d')]],
    'a field without a colon has no value': ['data\n\n', [message('')]],
    'lines of data are joined': ['data\ndata\n\n', [message('\n')]],
    'other fields are ignored': ['Data: a\ndata : b\nx: c\ndata: d\n\n', [message('d')]],
    'a type is for one event': ['event: progress\ndata: a\n\ndata: b\n\n', [{ type: 'progress', id: '', data: 'a' }, message('b')]],
    'a type without data is forgotten': ['event: progress\n\ndata: b\n\n', [message('b')]],
    'an ID stays until there is another one': ['id: 1\ndata: a\n\ndata: b\n\nid: 2\ndata: c\n\n', [message('a', '1'), message('b', '1'), message('c', '2')]],
    'an ID with a NUL is ignored': ['id: 1\ndata: a\n\nid: 2\0\ndata: b\n\n', [message('a', '1'), message('b', '1')]],
    'an empty ID is one': ['id: 1\ndata: a\n\nid\ndata: b\n\n', [message('a', '1'), message('b')]],
    'a block that has not ended is no event': ['data: a\n\ndata: b\n', [message('a')]],
    'text is UTF-8': ['data: ünïcödé 😀\n\n', [message('ünïcödé 😀')]],
    'invalid UTF-8 is replaced': [Uint8Array.of(...encoder.encode('data: '), 0xff, 10, 10), [message('\ufffd')]],
  }
  for (const [name, [stream, want]] of Object.entries(cases)) {
    await t.test(name, () => assert.deepEqual(parse(stream).events, want))
  }
})

test('an ID without data counts, once its block has ended', () => {
  assert.equal(parse('id: 7\n\n').id, '7')
  assert.equal(parse('id: 7\n').id, '')
})

test('a reconnection time is a whole number of milliseconds', () => {
  assert.equal(parse('retry: 250\n\n').retry, 250)
  for (const bad of ['2.5', '-1', '1e3', ' 1', 'x', '']) assert.equal(parse(`retry: ${bad}\n\n`).retry, null, bad)
})

test('a stream may be cut anywhere', () => {
  const stream = encoder.encode('\ufeffretry: 9\r\nevent: ü\r\nid: 1\r\ndata: a\r\ndata: 😀\r\n\r\n:\r\rdata: b\r\rid: 3\ndata: c\n\n\r\nid: 4\n\n')
  const want = {
    events: [{ type: 'ü', id: '1', data: 'a\n😀' }, message('b', '1'), message('c', '3')],
    id: '4',
    retry: 9,
  }
  assert.deepEqual(parse(stream), want)
  assert.deepEqual(parse(...Array.from(stream, (byte) => Uint8Array.of(byte))), want)
  for (let i = 0; i <= stream.length; i++) {
    for (let j = i; j <= stream.length; j++) {
      assert.deepEqual(parse(stream.subarray(0, i), stream.subarray(i, j), stream.subarray(j)), want, `cut at ${i} and ${j}`)
    }
  }
})

test('a line in many chunks is searched once', (t) => {
  let searched = 0
  const { exec } = RegExp.prototype
  t.mock.method(RegExp.prototype, 'exec', function (text) {
    searched += text.length
    return exec.call(this, text)
  })
  const { events } = parse('data: ', ...Array(100).fill('x'.repeat(100)), '\n\n')
  assert.equal(events[0].data.length, 10_000)
  assert.ok(searched < 20_000, `${searched} characters`)
})

test('a block without an end does not fill the memory', () => {
  const mebibyte = 'x'.repeat(1 << 20)
  for (const chunk of [mebibyte, 'data: ' + mebibyte + '\n']) {
    const parser = new EventStreamParser()
    assert.throws(() => { for (let n = 0; n < 34; n++) parser.push(encoder.encode(chunk)) }, RangeError)
  }
  const parser = new EventStreamParser()
  for (let n = 0; n < 34; n++) assert.equal(parser.push(encoder.encode('data: ' + mebibyte + '\n\n:' + mebibyte + '\n')).length, 1)
})
