// Drives @actions/cache: `save KEY PATH` or `restore KEY PATH [BEGINNING…]`. The last line of the output is the result.
import * as cache from '@actions/cache'

const [what, key, path, ...beginnings] = process.argv.slice(2)
const say = result => console.log(`RESULT ${JSON.stringify(result)}`)
if (what === 'save') {
  say(await cache.saveCache([path], key))
} else {
  say((await cache.restoreCache([path], key, beginnings)) ?? null)
}
