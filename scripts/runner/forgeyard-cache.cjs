// Sends the cache of JavaScript actions to the farm, under GitHub's own runner program, without changing that program.
//
// The runner writes ACTIONS_RESULTS_URL and ACTIONS_RUNTIME_TOKEN into the environment of every action and has no setting
// for them (actions/runner#3411 and #3906 were closed). But it hands down its own environment, and Node.js reads
// NODE_OPTIONS from there. So two files on the machine are enough:
//
//   /opt/forgeyard/forgeyard-cache.cjs       this file, which jobs cannot write
//   .env in the folder of the runner         NODE_OPTIONS=--require=/opt/forgeyard/forgeyard-cache.cjs
//                                            FORGEYARD_CACHE_URL=http://cache:8420/
//                                            FORGEYARD_CACHE_TOKEN=<a JWT of `forgeyard cache token --jwt`>
//
// Artifacts stay at GitHub, where people look for them, unless FORGEYARD_ARTIFACTS=1. Without the two values nothing is
// changed. Only the process that has loaded this file is concerned, before the action's own code runs.
'use strict'

const { FORGEYARD_CACHE_URL: url, FORGEYARD_CACHE_TOKEN: token, FORGEYARD_ARTIFACTS: artifacts } = process.env
const action = process.env.GITHUB_ACTION_REPOSITORY || ''
if (url && token && (artifacts === '1' || !/^actions\/.*artifact/.test(action))) {
  process.env.ACTIONS_RESULTS_URL = url
  process.env.ACTIONS_RUNTIME_TOKEN = token
  process.env.ACTIONS_CACHE_SERVICE_V2 = 'true'
}
