// What the admin page is built with.

import { el, number, setText } from './base.js'

export function setAttribute(at, name, value) {
  if (value === null) at.removeAttribute(name)
  else if (at.getAttribute(name) !== value) at.setAttribute(name, value)
}

// keyed makes the children of a list those of its items. An element stays for as long as
// its item's key does, so nothing flickers and the focus stays where it is.
export function keyed(parent, items, keyOf, build, update) {
  const focused = document.activeElement
  const there = new Map()
  for (const child of [...parent.children]) {
    if (there.has(child.key)) child.remove() // two items had one key
    else there.set(child.key, child)
  }
  let at = parent.firstElementChild
  for (const item of items) {
    const key = keyOf(item)
    let child = there.get(key)
    there.delete(key)
    if (!child) {
      child = build(item)
      child.key = key
    }
    update(child, item)
    if (child === at) at = at.nextElementSibling
    else parent.insertBefore(child, at)
  }
  for (const gone of there.values()) gone.remove()
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true })
}

// ---- Numbers and times -----------------------------------------------------------

export function short(n) {
  if (n < 10000) return number(n)
  for (const [unit, size] of [['M', 1e6], ['k', 1e3]]) {
    if (n >= size) return `${round(n / size)} ${unit}`
  }
  return number(n)
}

const round = (n) => (n < 10 ? n.toFixed(1).replace(/\.0$/, '') : String(Math.round(n)))

export function bytes(n) {
  for (const [unit, size] of [['GiB', 2 ** 30], ['MiB', 2 ** 20], ['KiB', 2 ** 10]]) {
    if (n >= size) return `${round(n / size)} ${unit}`
  }
  return `${n} B`
}

export const counted = (n, one, many = one + 's') => `${number(n)} ${n === 1 ? one : many}`

export function ago(text) {
  const seconds = Math.max(0, Math.round((Date.now() - Date.parse(text)) / 1000))
  if (seconds < 5) return 'now'
  if (seconds < 120) return `${seconds} s ago`
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`
  return `${Math.round(seconds / 86400)} d ago`
}

// ---- Bars --------------------------------------------------------------------------

// bars shows what something holds against its limits. The text says it all, so the bar
// itself is for the eye alone.
export function bars(at, holds) {
  keyed(at, holds, (h) => h.unit, buildBar, updateBar)
}

function buildBar() {
  const bar = el('span', 'fill')
  const made = el('span', 'bar-of', el('span', 'bar-text'), el('span', 'track', bar))
  made.lastElementChild.setAttribute('aria-hidden', 'true')
  made.bar = bar
  return made
}

function updateBar(made, { unit, has, limit, show = number }) {
  const share = limit > 0 ? has / limit : 0
  setText(made.firstElementChild, limit === undefined ? `${show(has)} ${unit}` : `${show(has)} of ${show(limit)} ${unit}`)
  const width = `${Math.min(100, Math.round(share * 1000) / 10)}%`
  if (made.bar.style.inlineSize !== width) made.bar.style.inlineSize = width
  made.dataset.level = share >= 1 ? 'full' : share >= 0.8 ? 'near' : 'free'
  made.lastElementChild.hidden = limit === undefined
}

export function holdings(s) {
  return [
    { unit: 'events', has: s.events, limit: s.limits.events },
    { unit: '', has: s.bytes, limit: s.limits.bytes, show: bytes },
    { unit: 'streams', has: s.openStreams, limit: s.limits.streams },
  ]
}
